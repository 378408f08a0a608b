"""Adds the further reward terms to sampled groups, before anything compares their attempts.

An environment gives outcome, format and its family's own terms. The terms of `reward.terms` read
finished attempts, some of them all attempts at a task at once. They are added only in training:
evaluation measures the outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from espalier.algorithms.shaping import CallFacts, EpisodeFacts, RewardTerm, TermContext
from espalier.config import (
    GradingConfig,
    OutcomeModelConfig,
    ProcessRewardConfig,
    Profile,
    term_context,
)
from espalier.judging import JudgeEnsemble, transcript_of
from espalier.records import DataError, Message
from espalier.records.trajectory import (
    TURNS_TERM,
    FinishReason,
    RewardBreakdown,
    ToolResult,
    Trajectory,
)
from espalier.training.parallel import Processes
from espalier.training.reward_models.head import RewardModel, load_reward_model
from espalier.training.rl.models import Layout

RewardFunction = Callable[[Sequence[Trajectory]], list[Trajectory]]
"""A function that returns the scored attempts at one task with the further terms of their
rewards."""


def no_further_reward(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the group unchanged: a `RewardFunction` without further terms."""
    return list(group)


class TermRewards:
    """Adds the terms of a profile."""

    def __init__(self, terms: Sequence[RewardTerm], context: TermContext) -> None:
        self._terms = terms
        self._context = context

    @classmethod
    def of(cls, profile: Profile) -> TermRewards:
        """Return an object that adds `profile`'s terms."""
        return cls(profile.reward.terms, term_context(profile))

    def __call__(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Add the terms to a group's rewards.

        Raises:
            DataError: an attempt has no outcome, or already has a term of the same name.
        """
        for trajectory in group:
            require_outcome(trajectory)
        if not self._terms:
            return list(group)
        facts = [episode_facts(trajectory) for trajectory in group]
        rewarded: list[RewardBreakdown] = [{} for _ in group]
        turns = [[0.0] * len(episode.turns) for episode in facts]
        for term in self._terms:
            for place, reward in enumerate(term.group_rewards(facts, self._context)):
                if reward.once is not None:
                    rewarded[place][term.key] = reward.once
                for turn, earned in enumerate(reward.by_turn):
                    turns[place][turn] += earned
        return [
            with_terms(trajectory, terms, by_turn)
            for trajectory, terms, by_turn in zip(group, rewarded, turns, strict=True)
        ]


class GraderRewards:
    """Adds the judges' score of an attempt, times its weight, under a name of its own."""

    def __init__(self, name: str, config: GradingConfig) -> None:
        self._name = name
        self._config = config
        self._ensemble = JudgeEnsemble(config)

    def __call__(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Add the judges' term to a group's rewards.

        Raises:
            JudgementMissingError: too few judges gave a readable answer.
            EngineError: a server stays unreachable, or the cost limit is reached.
        """
        most = self._config.max_observation_characters
        verdicts = self._ensemble.verdicts(
            [
                transcript_of(one, self._config.rubric, max_observation_characters=most)
                for one in group
            ]
        )
        rewarded: list[Trajectory] = []
        for trajectory, verdict in zip(group, verdicts, strict=True):
            self._ensemble.compare_with_rule(verdict, is_right=trajectory.is_right)
            terms = {self._name: self._config.weight * verdict.score}
            rewarded.append(with_terms(trajectory, terms, [0.0] * len(trajectory.turns)))
        return rewarded

    def close(self) -> None:
        """End the ensemble's thread."""
        self._ensemble.close()

    def figures(self) -> dict[str, float]:
        """Return the judges' agreement with each other and with the rule, and their cost."""
        return {f"{self._name}/{name}": value for name, value in self._ensemble.figures().items()}


class ProcessRewards:
    """Adds a trained head's scores of an attempt's steps, as `process` or turn by turn."""

    def __init__(self, model: RewardModel, config: ProcessRewardConfig) -> None:
        self._model = model
        self._config = config

    def __call__(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Add the head's scores to a group's rewards."""
        scores = self._model.scores(group)
        return [self._paid(one, steps) for one, steps in zip(group, scores, strict=True)]

    def _paid(self, trajectory: Trajectory, scores: Sequence[float]) -> Trajectory:
        weight, nothing = self._config.weight, [0.0] * len(scores)
        match self._config.reduce:
            case "progress":
                before = [0.0, *scores[:-1]]
                earned = [weight * (s - b) for s, b in zip(scores, before, strict=True)]
                return with_terms(trajectory, {}, earned)
            case "mean":
                rewarded = sum(scores) / max(1, len(scores))
            case "min":
                rewarded = min(scores, default=0.0)
        return with_terms(trajectory, {"process": weight * rewarded}, nothing)


class OutcomeModelRewards:
    """Replaces the rule's outcome by a trained head's, at its threshold."""

    def __init__(
        self, model: RewardModel, config: OutcomeModelConfig, context: TermContext
    ) -> None:
        self._model = model
        self._config = config
        self._context = context
        self._with_rule: list[tuple[bool, bool]] = []

    def __call__(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Replace the outcomes of a group."""
        rewarded: list[Trajectory] = []
        for trajectory, steps in zip(group, self._model.scores(group), strict=True):
            passes = bool(steps) and steps[-1] >= self._config.threshold
            self._with_rule.append((passes, trajectory.is_right))
            outcome = self._context.outcome_high if passes else self._context.outcome_low
            rewarded.append(replace(trajectory, reward=trajectory.reward | {"outcome": outcome}))
        return rewarded

    def figures(self) -> dict[str, float]:
        """Return the share of attempts so far on which the head and the rule agree."""
        agreed = sum(one == other for one, other in self._with_rule)
        return {"outcome_model/agreement": agreed / max(1, len(self._with_rule))}


class ProfileRewards:
    """Everything that training adds to rewards, applied one after the other."""

    def __init__(
        self,
        terms: TermRewards,
        graders: Sequence[GraderRewards] = (),
        *,
        process: ProcessRewards | None = None,
        outcome: OutcomeModelRewards | None = None,
    ) -> None:
        self._outcome = outcome
        self._terms = terms
        self._process = process
        self._graders = graders

    @classmethod
    def of(cls, profile: Profile, layout: Layout) -> ProfileRewards:
        """Return the reward terms of `profile`.

        Args:
            profile: profile of the run.
            layout: how attempts are packed for reward models; each process scores for itself.

        Raises:
            ArtifactError: a folder named by the profile holds no reward model of its kind.
        """
        reward = profile.reward
        own = replace(layout, processes=Processes())
        graders = [GraderRewards(*named) for named in reward.graders.items()]
        process = outcome = None
        if reward.process is not None:
            model = load_reward_model(reward.process.model, "process", own)
            process = ProcessRewards(model, reward.process)
        if reward.outcome_model is not None:
            model = load_reward_model(reward.outcome_model.model, "outcome", own)
            outcome = OutcomeModelRewards(model, reward.outcome_model, term_context(profile))
        return cls(TermRewards.of(profile), graders, process=process, outcome=outcome)

    @property
    def asks_models(self) -> bool:
        """Whether a term calls models that cost money: one process then calls them for all."""
        return bool(self._graders)

    def __call__(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Add all terms to a group's rewards."""
        for trajectory in group:
            require_outcome(trajectory)
        rewarded = self._terms(self._outcome(group) if self._outcome else group)
        if self._process is not None:
            rewarded = self._process(rewarded)
        for grader in self._graders:
            rewarded = grader(rewarded)
        return rewarded

    def judged(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Return `group` with the outcomes that training uses, and none of the further terms."""
        return self._outcome(group) if self._outcome and group else list(group)

    def figures(self) -> dict[str, float]:
        """Return the agreement of graders and of an outcome model so far."""
        measured = [*self._graders, *([self._outcome] if self._outcome else [])]
        return {name: value for one in measured for name, value in one.figures().items()}


def require_outcome(trajectory: Trajectory) -> None:
    """Check that an attempt was scored: a missing reward is never 0.

    Raises:
        DataError: it has no outcome, or a term that is no number.
    """
    if "outcome" not in trajectory.reward:
        raise DataError(
            f"task {trajectory.task_id}: an attempt that ended as {trajectory.finish_reason} has "
            f"no outcome among its terms ({', '.join(trajectory.reward) or 'it has none'}); "
            "its environment must score it, or say that it was lost"
        )
    if wrong := [name for name, value in trajectory.reward.items() if not math.isfinite(value)]:
        raise DataError(f"task {trajectory.task_id}: {', '.join(wrong)} of its reward is no number")


def without_terms(trajectory: Trajectory, names: AbstractSet[str]) -> Trajectory:
    """Return `trajectory` as if the terms of these names were not paid."""
    if not names & trajectory.reward.keys():
        return trajectory
    reward = {name: paid for name, paid in trajectory.reward.items() if name not in names}
    turns = trajectory.turns
    if TURNS_TERM in names:
        turns = tuple(replace(turn, reward=0.0) for turn in turns)
    return replace(trajectory, reward=reward, turns=turns)


def with_terms(
    trajectory: Trajectory, terms: RewardBreakdown, turn_rewards: Sequence[float]
) -> Trajectory:
    """Return `trajectory` with further terms, and further rewards of its turns.

    Args:
        trajectory: a scored trajectory.
        terms: terms by name, none of which it may have already.
        turn_rewards: one further reward for each turn.

    Raises:
        DataError: two terms have the same name.
    """
    if twice := sorted(terms.keys() & trajectory.reward.keys()):
        raise DataError(
            f"task {trajectory.task_id}: its environment pays a term named {', '.join(twice)} "
            "itself; leave it out of reward.terms"
        )
    reward = trajectory.reward | terms
    if any(turn_rewards):
        reward[TURNS_TERM] = reward.get(TURNS_TERM, 0.0) + sum(turn_rewards)
    turns = tuple(
        replace(turn, reward=turn.reward + reward)
        for turn, reward in zip(trajectory.turns, turn_rewards, strict=True)
    )
    return replace(trajectory, reward=reward, turns=turns)


def episode_facts(trajectory: Trajectory) -> EpisodeFacts:
    """Return what the terms read of a scored attempt."""
    said = _own_messages(trajectory)
    left = list(trajectory.tool_results)
    turns: list[tuple[CallFacts, ...]] = []
    for message in said:
        made, left = left[: len(message.tool_calls)], left[len(message.tool_calls) :]
        turns.append(tuple(_call_facts(result) for result in made))
    sampled = [place for place, acted in enumerate(trajectory.action_mask) if acted]
    return EpisodeFacts(
        outcome=trajectory.reward["outcome"],
        is_right=trajectory.is_right,
        answer=trajectory.answer,
        turns=tuple(turns),
        thoughts=tuple(bool((message.thought or "").strip()) for message in said),
        last_text=said[-1].content if said else "",
        is_malformed=trajectory.finish_reason is FinishReason.PARSE_ERROR,
        is_truncated=trajectory.finish_reason is FinishReason.MAX_TOKENS,
        total_tokens=len(trajectory.token_ids),
        action_token_ids=tuple(trajectory.token_ids[place] for place in sampled),
        action_logprobs=tuple(trajectory.behavior_logprobs[place] for place in sampled),
    )


def _own_messages(trajectory: Trajectory) -> list[Message]:
    """Return the message of each turn, without examples in the prompt, which come before them."""
    said = [message for message in trajectory.messages if message.role == "assistant"]
    return said[len(said) - len(trajectory.turns) :]


def _call_facts(result: ToolResult) -> CallFacts:
    arguments = json.dumps(result.call.arguments, sort_keys=True)
    return CallFacts(result.call.name, arguments, result.succeeded, result.exists)
