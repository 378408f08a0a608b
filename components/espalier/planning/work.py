"""Work of each stage: trained tokens, sampled tokens, episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from espalier.algorithms import Algorithm
from espalier.config import Profile, family_class
from espalier.environments.mixins import LooksAnswersUp, has_demonstrations
from espalier.planning.figures import Figures
from espalier.planning.sharing import Sharing, positions_per_token

POLICIES = 3
"""Number of evaluated policies: untrained, warm-started and trained."""
_FORWARD = 1 / 3
"""Share of the forward pass: 2 of 6 operations per parameter and token (arXiv:2001.08361)."""
_READ_AGAIN = 4  # most tokens of a micro-batch for each of its positions: training.rl.rows
_NAME_TOKENS = 10  # tokens of an answer from memory, which is short like its examples
_CHUNK_TASKS = 64  # tasks that the curriculum filter plays at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Work of one stage; token counts are expected values, and so not integers."""

    trained_tokens: float = 0.0
    """Tokens of forward and backward passes; a token counts once per pass."""
    rollout_tokens: float = 0.0
    """Action tokens sampled in training."""
    judged_tokens: float = 0.0
    """Action tokens sampled for evaluations."""
    micro_batch_tokens: float = 0.0
    """Positions of one micro-batch."""
    tokens_per_position: float = 1.0
    """Trained tokens per position; above 1 if trajectories share their beginnings."""
    rows: int = 0
    """Episodes that are played at the same time."""
    kept_episodes: float = 0.0
    """Trajectories in memory at the same time."""

    @property
    def trained_positions(self) -> float:
        """Positions that the trained tokens occupy."""
        return self.trained_tokens / self.tokens_per_position


def work_of(profile: Profile, figures: Figures) -> dict[str, StageWork]:
    """Stage -> work, for the stages that run a policy."""
    return {
        "prepare_policy": _prestage(profile),
        "continue_pretraining": _pretraining(profile, figures),
        "warm_start": _warm_start(profile, figures),
        "filter_curriculum": _filter(profile, figures),
        "train": _train(profile, figures),
        "evaluate": _evaluate(profile, figures),
    }


def passes(algorithm: Algorithm) -> float:
    """Passes over an update's tokens, where a forward with its backward pass counts as 1."""
    scored = _FORWARD * (algorithm.scores_before_update + algorithm.needs_reference)
    return 1.0 + scored + (1.0 + _FORWARD if algorithm.critic else 0.0)


def _micro(profile: Profile, tokens: float) -> float:
    return min(tokens, profile.hardware.micro_batch_tokens)


def _rows(profile: Profile, episodes: int) -> int:
    return min(profile.rollout.max_rows, episodes)


def _prestage(profile: Profile) -> StageWork:
    if profile.policy.model is not None or profile.policy.start == "champion":
        return StageWork()
    config = profile.policy.prestage
    return StageWork(
        trained_tokens=config.steps * config.tokens_per_step,
        micro_batch_tokens=_micro(profile, config.tokens_per_step),
    )


def _pretraining(profile: Profile, figures: Figures) -> StageWork:
    config = profile.continued_pretraining
    if not config.enabled:
        return StageWork()
    of_step = config.texts_per_step * figures.demonstration_tokens
    return StageWork(
        trained_tokens=config.steps * of_step, micro_batch_tokens=_micro(profile, of_step)
    )


def _warm_start(profile: Profile, figures: Figures) -> StageWork:
    config = profile.warm_start
    family = cast("type[object]", family_class(profile.environment.name))
    if not has_demonstrations(family, profile):
        return StageWork()  # the stage publishes the given model as it is
    of_step = config.trajectories_per_step * figures.demonstration_tokens
    looks = math.ceil(config.steps / config.evaluate_every)
    steps, rollouts = config.steps, 0
    if config.hindsight is not None:
        steps += config.hindsight.steps
        looks += math.ceil(config.hindsight.steps / config.evaluate_every)
        rollouts = config.hindsight.tasks * config.hindsight.attempts
    trained = steps * of_step
    if (pairs := config.preferences) is not None:
        looks += math.ceil(pairs.steps / config.evaluate_every)
        trained += pairs.steps * 2 * pairs.pairs_per_step * figures.demonstration_tokens
    return StageWork(
        trained_tokens=trained,
        rollout_tokens=rollouts * figures.action_tokens,
        judged_tokens=looks * config.dev_questions * figures.action_tokens,
        micro_batch_tokens=_micro(profile, of_step),
        rows=_rows(profile, max(config.dev_questions, rollouts)),
        kept_episodes=max(config.dev_questions, rollouts),
    )


def _filter(profile: Profile, figures: Figures) -> StageWork:
    config = profile.curriculum
    if not config.enabled:
        return StageWork()
    attempts = config.candidates * config.rollouts_per_task
    chunk = min(attempts, _CHUNK_TASKS * config.rollouts_per_task)
    return StageWork(
        judged_tokens=attempts * figures.action_tokens,
        rows=_rows(profile, chunk),
        kept_episodes=chunk,
    )


def _train(profile: Profile, figures: Figures) -> StageWork:
    config = profile.training
    if not config.steps:
        return StageWork()
    of_step = config.tasks_per_step * config.group_size
    groups = figures.learned_share * config.tasks_per_step
    learned_of_step = groups * config.group_size
    looks = 1 + math.ceil(config.steps / config.evaluate_every)  # one before the first step
    learned = config.steps * learned_of_step * figures.episode_tokens * config.epochs
    sampled = figures.rollouts_per_place * of_step
    share = positions_per_token(profile, Sharing(figures.preamble_share, figures.common_share))
    positions = share * learned_of_step * figures.episode_tokens / config.minibatches
    return StageWork(
        trained_tokens=learned * passes(config.algorithm),
        rollout_tokens=config.steps * sampled * figures.action_tokens,
        judged_tokens=looks * config.dev_questions * figures.action_tokens,
        micro_batch_tokens=min(
            _micro(profile, positions), _READ_AGAIN * share * profile.hardware.micro_batch_tokens
        ),
        tokens_per_position=1 / share,
        rows=_rows(profile, max(of_step, config.dev_questions)),
        kept_episodes=sampled + config.replay.capacity * config.group_size,
    )


def _evaluate(profile: Profile, figures: Figures) -> StageWork:
    config, questions = profile.evaluation, profile.synthesis.heldout_tasks
    samples = min(config.sampled_questions, questions) * config.samples_per_task
    from_memory = min(config.closed_book_questions, questions) * _NAME_TOKENS
    family = cast("type[object]", family_class(profile.environment.name))
    if not issubclass(family, LooksAnswersUp):
        from_memory = 0
    played = (questions + samples) * figures.action_tokens
    return StageWork(
        judged_tokens=POLICIES * (played + from_memory),
        rows=_rows(profile, max(questions, samples)),
        kept_episodes=questions + samples,
    )
