"""warm_start: masked SFT of the base policy on the teacher's trajectories.

Inputs: knowledge (its train and dev views), accepted tasks, trajectories and negatives, the base
policy.
Leaves: policy/ with the best weights by dev EM, history.parquet, run.json with the throughput; with
[warm_start.hindsight] hindsight/: failed attempts as demonstrations of what they solved, and why
the others were not used; with files of the user's own own_traces/: how many of their rows were
used, and why others were not; with [warm_start.preferences] preferences.parquet, the history of
that phase. Where nobody demonstrates, the base policy is published as it is.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from espalier.algorithms.losses.dpo import Dpo
from espalier.chain import opened, policy_digest, provenance
from espalier.config import HindsightConfig, PreferencesConfig, Profile
from espalier.dialects.dialect import Dialect
from espalier.environments import EnvironmentsOver, Family, policy_dialect
from espalier.environments.hindsight import Hindsight, Relabelled, relabelled
from espalier.environments.memory import recalled_prompt, remembering
from espalier.environments.mixins import (
    RelabelsFailures,
    Renames,
    entity_splits_of,
    has_demonstrations,
)
from espalier.environments.teaching import ScriptTeacher
from espalier.policy.hardware import Hardware
from espalier.policy.loading import Policy, load_policy_to_train, save_policy
from espalier.records import (
    SPLITS,
    DataError,
    Manifest,
    Message,
    Provenance,
    Split,
    Task,
    Tracker,
    json_digest,
    publishing,
    read_agent_texts,
    read_tasks,
    work_dir,
)
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.rollout.roller import Roller
from espalier.training.checkpoint import CheckpointStore, write_history
from espalier.training.demonstrations import encode_demonstration, encode_negative
from espalier.training.dev_questions import dev_questions, few_questions_line
from espalier.training.hindsight import (
    RelabelledStore,
    attempted_tasks,
    drop_too_long,
    keep_share,
    publish_relabelled,
    sampled_attempts,
)
from espalier.training.own_traces import (
    Fit,
    JudgedQuestions,
    OwnTraces,
    Trace,
    publish_own_traces,
)
from espalier.training.packing import TrainingSequence
from espalier.training.preferences import HISTORY_COLUMNS as PREFERENCE_COLUMNS
from espalier.training.preferences import PreferenceLoop, pairs_at
from espalier.training.supervised import (
    HISTORY_COLUMNS,
    DevScore,
    EpochOrder,
    SupervisedLoop,
    SupervisedPlan,
    SupervisedResult,
    dev_exact_match,
)
from espalier.validation.columns import SplitTask
from espalier.validation.relabelled import refused


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Train, and publish the weights with the highest dev EM."""
    manifests = opened(inputs)
    origin = provenance("warm_start", profile, manifests, external_digests)
    policy = load_policy_to_train(
        inputs["pretrained_policy"] / "policy",
        profile,
        digest=policy_digest(manifests["pretrained_policy"]),
    )
    material = _Material(profile, inputs, policy)
    if not has_demonstrations(type(material.family), profile):
        return _unchanged(policy, material.family.name, origin, output_dir, tracker)
    work, identity = work_dir(output_dir), json_digest(origin.model_dump())
    config, found = profile.warm_start.hindsight, None
    for kind, own in material.own.items():
        tracker.note(f"warm_start.{kind}: {own.said}")
    # created before any training, because it refuses knowledge in which nothing can be proven
    hindsight = None if config is None else material.hindsight
    with material.family.environments(inputs["knowledge"]) as environments_over:
        roller = Roller.local(policy, environments_over("dev"), profile)
        judged = dev_questions(profile, material.family, inputs, training="warm_start")
        if line := few_questions_line(len(judged), "warm_start.dev_questions"):
            tracker.note(line)
        plan = _plan(profile, material, lambda: dev_exact_match(roller, judged))
        result = SupervisedLoop(policy.model, plan, CheckpointStore(work, identity)).run(tracker)
        if config is not None and hindsight is not None:
            store = RelabelledStore(work, identity)
            found = store.load()
            if found is None:
                found = _relabelled(config, material, hindsight, environments_over)
                store.save(found)
            again = CheckpointStore(work / "second_round", identity)
            result = _second_round(config, material, found, (plan, result), again, tracker)
        preferred = None
        if profile.warm_start.preferences is not None:
            last = CheckpointStore(work / "preferences", identity)
            preferred = _preference_phase(
                profile.warm_start.preferences, material, (plan, result), last, tracker
            )
    with publishing(output_dir, origin) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", result.history, HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(
            json.dumps(
                {
                    "sft_tokens_per_s": result.tokens_per_s,
                    "best_step": (preferred or result).best_step,
                }
            )
        )
        draft.rows["trajectories"] = len(material.sequences)
        if found is not None:
            publish_relabelled(draft, found)
        if preferred is not None:
            path = draft.path / "preferences.parquet"
            write_history(path, preferred.history, PREFERENCE_COLUMNS)
        publish_own_traces(draft, material.own)
    tracker.metrics({"sft_tokens_per_s": result.tokens_per_s})
    return draft.published


def _unchanged(
    policy: Policy, family: str, origin: Provenance, output_dir: Path, tracker: Tracker
) -> Manifest:
    """Publish the base policy: reinforcement learning begins with it."""
    tracker.note(
        f"warm start: {family} has no teacher and warm_start.demonstrations names no file, so that "
        "training begins with the base policy as it is"
    )
    with publishing(output_dir, origin) as draft:
        save_policy(policy, draft.path / "policy")
        write_history(draft.path / "history.parquet", [], HISTORY_COLUMNS)
        (draft.path / "run.json").write_text(json.dumps({"best_step": 0}))
        draft.rows["trajectories"] = 0
    return draft.published


@dataclass(frozen=True)
class _Material:
    """Inputs of the stage, and their encoding as sequences of the policy's tokens."""

    profile: Profile
    inputs: Mapping[str, Path]
    policy: Policy

    @cached_property
    def family(self) -> Family[Any]:
        return remembering(self.profile, self.inputs["accepted"])

    @property
    def hindsight(self) -> Hindsight:
        assert isinstance(self.family, RelabelsFailures), "or the profile is refused"
        return self.family.hindsight(self.inputs["knowledge"], self.inputs["accepted"])

    def tasks(self, split: Split) -> list[Task]:
        return read_tasks(self.inputs["accepted"] / "tasks" / f"{split}.jsonl")

    @cached_property
    def train_tasks(self) -> list[Task]:
        return self.tasks("train")

    @cached_property
    def _task_of_id(self) -> dict[str, Task]:
        return {task.task_id: task for task in self.train_tasks}

    @cached_property
    def demonstrations(self) -> list[Trajectory]:
        """The teacher's demonstrations; empty where `warm_start.teacher` is off."""
        if not self.profile.warm_start.teacher:
            return []
        return read_trajectories(self.inputs["accepted"] / "trajectories.parquet")

    @cached_property
    def sequences(self) -> list[TrainingSequence]:
        """Sequences of the teacher's demonstrations, the negatives, and the user's own."""
        own = self.own["demonstrations"].sequences if "demonstrations" in self.own else []
        if not self.profile.warm_start.teacher:
            return own
        negatives = read_agent_texts(self.inputs["accepted"] / "negatives.jsonl")
        encoded = [encode_negative(negative, self._dialect) for negative in negatives]
        limit = self.profile.episode.max_tokens
        return [
            *(self.encode(one, self._task_of_id) for one in self.demonstrations),
            *(one for one in encoded if len(one.token_ids) <= limit),
            *own,
        ]

    @cached_property
    def own(self) -> dict[str, Fit]:
        """Usable rows of the user's files, by the files' keys in [warm_start].

        Raises:
            DataError: a line is invalid; the message names it.
        """
        config = self.profile.warm_start
        if config.demonstrations is None and config.preferences is None:
            return {}
        judged: dict[Split, list[Task]] = {name: self.tasks(name) for name in ("heldout", "dev")}
        reader = OwnTraces(
            dialect_of=self._dialect_of_trace,
            judged=JudgedQuestions(judged, reads_symbols=self.family.reads_symbols),
            limits=self.profile.episode,
        )
        found: dict[str, Fit] = {}
        if config.demonstrations is not None:
            found["demonstrations"] = reader.demonstrations(config.demonstrations)
        if config.preferences is not None:
            found["preferences"] = reader.pairs(config.preferences.path)
        return found

    @cached_property
    def _tasks_bring_tools(self) -> bool:
        """Whether tasks offer tools that are not the family's own."""
        one_of_each = {task.environment: task for task in self.train_tasks}.values()
        return any(self.family.specs_of(task) != self.family.specs for task in one_of_each)

    def _dialect_of_trace(self, trace: Trace) -> Dialect:
        if not self._tasks_bring_tools:
            return self._dialect
        if not trace.tools and trace.called:
            raise DataError(
                f"{trace.where}: in environment {self.family.name} each task has its own tools, "
                f'but the row has no "tools"; add the entries of {trace.called[0]} and of all '
                "others that were offered"
            )
        return self._dialect.with_tools(trace.tools)

    def sequences_at(
        self, per_step: int, *, seed: int, further: Sequence[TrainingSequence] = ()
    ) -> Callable[[int], list[TrainingSequence]]:
        """A function that gives the sequences of a step; demonstrations get new names every time.

        Args:
            per_step: number of sequences in a step.
            seed: seed of the order and of the names.
            further: more sequences, which are not renamed.
        """
        sequences = [*self.sequences, *further]
        share = self.profile.warm_start.renamed_share
        renaming = None
        if share and isinstance(self.family, Renames):
            renaming = self.family.renaming(self.inputs["knowledge"], share)
        if renaming is None:
            return EpochOrder(sequences, per_step, seed).at
        shown = dict(enumerate(self.demonstrations))
        order = EpochOrder(range(len(sequences)), per_step, seed)

        def showing(number: int, rng: random.Random) -> TrainingSequence:
            if number not in shown:
                return sequences[number]
            task, renamed = renaming(self._task_of_id[shown[number].task_id], shown[number], rng)
            sequence = self.encode(renamed, {task.task_id: task})
            fits = len(sequence.token_ids) <= self.profile.episode.max_tokens
            return sequence if fits else sequences[number]

        def at(step: int) -> list[TrainingSequence]:
            rng = random.Random(f"renamed:{seed}:{step}")
            return [showing(number, rng) for number in order.at(step)]

        return at

    def encode(self, demonstration: Trajectory, tasks: Mapping[str, Task]) -> TrainingSequence:
        """Encode a demonstration of one of `tasks` (task id -> task).

        Recalled memories stand before the question, as in an episode, where both fit.
        """
        if self.profile.episode.memory is not None:
            recalling = encode_demonstration(
                demonstration, tasks, self._dialect_of, self._recalled_prompt
            )
            if len(recalling.token_ids) <= self.profile.episode.max_tokens:
                return recalling
        return encode_demonstration(demonstration, tasks, self._dialect_of)

    def _recalled_prompt(self, task: Task, dialect: Dialect) -> tuple[Message, ...]:
        memory, limits = self.family.memory, self.profile.episode
        return recalled_prompt(task.prompt, task, memory, dialect, limits)

    @cached_property
    def _dialect(self) -> Dialect:
        return policy_dialect(self.family, self.policy.tokenizer)

    def _dialect_of(self, task: Task) -> Dialect:
        return self._dialect.with_tools(self.family.specs_of(task))


def _plan(
    profile: Profile, material: _Material, dev_score: Callable[[], DevScore]
) -> SupervisedPlan:
    config, steps = profile.warm_start, profile.warm_start.steps
    if profile.asks_own_knowledge:
        shown = config.max_epochs * len(material.sequences)
        most = math.ceil(shown / config.trajectories_per_step)
        steps = max(1, min(steps, most))
    return SupervisedPlan(
        name="warm start",
        sequences_at=material.sequences_at(config.trajectories_per_step, seed=profile.seed),
        steps=steps,
        optimizer=config.optimizer,
        row_tokens=profile.episode.max_tokens,
        micro_batch_tokens=profile.hardware.micro_batch_tokens,
        checkpoint_every=config.evaluate_every,
        hardware=Hardware.from_config(profile.hardware),
        dev_score=dev_score,
    )


def _relabelled(
    config: HindsightConfig,
    material: _Material,
    hindsight: Hindsight,
    environments_over: EnvironmentsOver,
) -> Relabelled:
    """Attempts of the current policy, relabelled, and checked by the rules of validation."""
    profile, family, inputs = material.profile, material.family, material.inputs
    environments = environments_over("train")
    demonstrated = {one.task_id for one in material.demonstrations}
    tasks = attempted_tasks(config, material.train_tasks, demonstrated, profile.seed)
    # no retries, because a second attempt cannot show how the first could have been right
    episode = profile.episode.model_copy(update={"retry": None})
    single = profile.model_copy(update={"episode": episode})
    roller = Roller.local(material.policy, environments, single)
    found = relabelled(
        sampled_attempts(config, tasks, roller, profile.seed),
        hindsight,
        ScriptTeacher(environments),
        demonstrated,
    )
    drop_too_long(found, lambda one: material.encode(one, found.tasks), profile.episode.max_tokens)
    accepted = [SplitTask(split, task) for split in SPLITS for task in material.tasks(split)]
    entities = entity_splits_of(family, inputs["knowledge"])
    solved = list(found.tasks.values())
    for task_id, name in refused(accepted, solved, found.demonstrations, entities, family).items():
        found.drop(task_id, f"validation_{name}")
    keep_share(found, config, len(material.sequences), profile.seed)
    return found


def _second_round(
    config: HindsightConfig,
    material: _Material,
    found: Relabelled,
    first: tuple[SupervisedPlan, SupervisedResult],
    store: CheckpointStore,
    tracker: Tracker,
) -> SupervisedResult:
    """Continue training with the relabelled demonstrations added; the result of both rounds."""
    plan, before = first
    reasons = ", ".join(f"{number} {name}" for name, number in found.unused.most_common())
    tracker.note(
        f"hindsight: {len(found.demonstrations)} attempts are demonstrations of another task; "
        f"not used: {reasons or 'none'}"
    )
    tracker.metrics({"relabelled": float(len(found.demonstrations))})
    if not found.demonstrations:
        return before
    relabelled_too = [material.encode(one, found.tasks) for one in found.demonstrations]
    per_step = material.profile.warm_start.trajectories_per_step
    seed = material.profile.seed + 1
    again = replace(
        plan,
        name="warm start, second round",
        sequences_at=material.sequences_at(per_step, seed=seed, further=relabelled_too),
        steps=config.steps,
        steps_before=plan.steps,
        score_before=before.best_score,
    )
    after = SupervisedLoop(material.policy.model, again, store).run(tracker)
    kept = after.best_step > plan.steps
    return SupervisedResult(
        [*before.history, *after.history],
        before.tokens + after.tokens,
        before.seconds + after.seconds,
        after.best_step if kept else before.best_step,
        after.best_score,
    )


def _preference_phase(
    config: PreferencesConfig,
    material: _Material,
    first: tuple[SupervisedPlan, SupervisedResult],
    store: CheckpointStore,
    tracker: Tracker,
) -> SupervisedResult:
    """DPO on the user's pairs, starting from the weights of the last imitation round."""
    plan, before = first
    pairs, seed = material.own["preferences"].sequences, material.profile.seed
    steps_before = int(before.history[-1]["step"])
    phase = replace(
        plan,
        name="warm start, preferences",
        sequences_at=pairs_at(pairs, config.pairs_per_step, seed),
        steps=config.steps,
        optimizer=config.optimizer,
        steps_before=steps_before,
        score_before=before.best_score,
    )
    rule = Dpo(beta=config.beta)
    loop = PreferenceLoop(material.policy.model, phase, store, pairs, rule)
    margins = loop.reference_margins()
    preferred = sum(margin > 0 for margin in margins)
    tracker.note(
        f"preferences: of {len(margins)} chosen endings the policy finds {preferred} more likely "
        "than the rejected ones before this phase"
    )
    after = loop.run(tracker)
    kept = after.best_step > steps_before
    tracker.note(
        f"preferences: the weights of step {after.best_step} are kept"
        if kept
        else "preferences: no weights of this phase answer as many dev questions as those before"
    )
    return replace(after, best_step=after.best_step if kept else before.best_step)
