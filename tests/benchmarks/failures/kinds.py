"""The kinds of failing runs: small changes of one healthy profile, each with a known onset.

A change acts on what training sees: rewards, episodes, weights, tasks. The held-out score is never
touched: its questions, its search and its verifier are those of a healthy run.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from espalier.config import TrainingConfig

if TYPE_CHECKING:  # scoring kept histories needs no torch
    from espalier.curriculum.pool import TaskPool
    from espalier.records import Task
    from espalier.records.trajectory import Trajectory
    from espalier.rollout.roller import TrajectorySampler
    from espalier.training.rl.publishing import MemoryPublisher
    from tests.benchmarks.failures.world import Changes, Pieces

ONSET = 9
"""Step from which a kind with an onset acts: eight steps are healthy."""


DEV_QUESTIONS = 24
"""Half of the world's facts."""


class Clock:
    """The step that is being made, counted from 1."""

    def __init__(self) -> None:
        self.step = 0

    def is_after(self, onset: int) -> bool:
        """Return whether what begins at `onset` acts."""
        return self.step >= onset


Paid = Callable[["Trajectory", random.Random], dict[str, float]]
"""Terms of an attempt's reward that take the place of its own, or join them."""
Played = Callable[["Trajectory", random.Random], "Trajectory"]


class Kind(NamedTuple):
    """One way to fail."""

    what: str
    settings: Mapping[str, Any] = {}
    """Keys of [training]."""
    paid: Paid | None = None
    played: Played | None = None
    begin: Callable[[Pieces], None] | None = None
    """What happens once, at the onset."""
    wrong_share: float = 0.0
    """Share of the tasks whose verdicts are inverted; at least one."""
    publishes: bool = True
    onset: int = ONSET


# ------------------------------------------------------------------------------ rewards


def _outcome(*, right: bool) -> dict[str, float]:
    return {"outcome": 1.0 if right else 0.0}


def _any_answer(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    return _outcome(right=attempt.answer is not None)


def _word_of_a_result(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    words = {word for result in attempt.tool_results for word in result.content.split()}
    return _outcome(right=attempt.is_right or (attempt.answer or "").strip() in words)


def _fixed_word(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    return _outcome(right=attempt.is_right or (attempt.answer or "").strip() in FIXED)


FIXED = ("amber", "basil", "cedar", "daisy")


def _biased_judge(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    """A judge who likes answers early in the alphabet."""
    answer = (attempt.answer or "").strip()
    return {"judge": 1.0 if answer[:1] and answer[0] < "f" else 0.0}


def _longer(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    return {"length": sum(attempt.action_mask) / 20}


def _each_call(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    return {"calls": 0.5 * len(attempt.tool_results)}


def _one_query(attempt: Trajectory, _: random.Random) -> dict[str, float]:
    """The same first query is paid, whatever is asked."""
    first = attempt.tool_results[0].call.arguments.get("query", "") if attempt.tool_results else ""
    return _outcome(right=str(first).startswith("oslo"))


def _flipped(share: float) -> Paid:
    def paid(attempt: Trajectory, rng: random.Random) -> dict[str, float]:
        return _outcome(right=attempt.is_right != (rng.random() < share))

    return paid


# ------------------------------------------------------------------------------ episodes


def _unknown(attempt: Trajectory, _: random.Random) -> Trajectory:
    results = tuple(replace(r, exists=False, succeeded=False) for r in attempt.tool_results)
    return replace(attempt, tool_results=results)


def _perturbed(attempt: Trajectory, rng: random.Random) -> Trajectory:
    logprobs = tuple(
        min(-1e-4, value + rng.gauss(0.0, 0.3)) if acted else 0.0
        for value, acted in zip(attempt.behavior_logprobs, attempt.action_mask, strict=True)
    )
    return replace(attempt, behavior_logprobs=logprobs)


def _no_answers(pieces: Pieces) -> None:
    pieces.world.answers = False


def _two_tasks(pieces: Pieces) -> None:
    pool: TaskPool = pieces.pool
    pool.restore(pool.state(), pool.kept_ids()[:2])


_FEW_TASKS = {"tasks_per_step": 2, "group_size": 32}
_UNCLIPPED = {"loss": {"name": "ppo_clip", "clip_low": 0.99, "clip_high": 100.0}}


def _rate(rate: float) -> dict[str, Any]:
    return {"learning_rate": rate, "warmup_share": 0.0, "final_share": 1.0}


KINDS: Mapping[str, Kind] = {
    "healthy": Kind("nothing is changed", onset=0),
    "leaking_mask": Kind("tool results are trained on", {"train_on_observations": True}, onset=1),
    "hack_any_answer": Kind("the verifier accepts any answer", paid=_any_answer),
    "hack_result_word": Kind("it accepts any word of a result", paid=_word_of_a_result),
    "hack_fixed_word": Kind("it always accepts four of the sixteen answers", paid=_fixed_word),
    "judge_bias": Kind("a judge pays answers that begin with a-e", paid=_biased_judge),
    "length_reward": Kind("a term pays each token", paid=_longer),
    "wrong_rewards_5": Kind("verdicts of 5 % of the tasks are inverted", wrong_share=0.05),
    "wrong_rewards_15": Kind("verdicts of 15 % of the tasks are inverted", wrong_share=0.15),
    "wrong_rewards_30": Kind("verdicts of 30 % of the tasks are inverted", wrong_share=0.3),
    "flipped_rewards_15": Kind("15 % of the verdicts are inverted by chance", paid=_flipped(0.15)),
    "unknown_tool": Kind(
        "the tool is renamed, and calls name one that is none", played=_unknown, begin=_no_answers
    ),
    "loops": Kind("a term pays each call", paid=_each_call),
    "all_right": Kind(
        "every attempt is right", paid=lambda attempt, _: _outcome(right=True) | {"format": 0.1}
    ),
    "all_wrong": Kind(
        "every attempt is wrong", paid=lambda attempt, _: _outcome(right=False) | {"format": 0.1}
    ),
    "rate_too_high": Kind(
        "the learning rate is ten times as high", {"optimizer": _rate(5e-3)}, onset=1
    ),
    "echo_trap": Kind(
        "few tasks, many passes over them, six times the rate",
        {**_FEW_TASKS, "optimizer": _rate(3e-3), "epochs": 2, "minibatches": 4},
        begin=_two_tasks,
        onset=1,
    ),
    "template_collapse": Kind("one first query is paid for all tasks", paid=_one_query),
    "perturbed_logprobs": Kind("the engine's log-probs have noise of 0.3 nats", played=_perturbed),
    "stale_weights": Kind("new weights do not reach the engine", publishes=False),
    "dying_tool": Kind("the search finds nothing any more", begin=_no_answers),
    "stale_unclipped": Kind(
        "most trajectories are old, and no ratio is clipped",
        {
            "replay": {"capacity": 64, "share": 0.8, "max_staleness": 32},
            "algorithm": _UNCLIPPED,
            "optimizer": _rate(3e-3),
        },
        onset=1,
    ),
    "narrow_curriculum": Kind("two tasks are left", begin=_two_tasks),
}


HEALTHY: Sequence[Mapping[str, Any]] = (
    {},
    {"algorithm": {"preset": "grpo"}},
    {"tasks_per_step": 4, "group_size": 16},
    {"algorithm": {"preset": "dr_grpo"}, "minibatches": 1},
    {"tasks_per_step": 16, "group_size": 4},
    {"algorithm": {"preset": "rloo"}},
    {"temperature": 1.3},
    {"algorithm": {"preset": "gspo"}, "minibatches": 4},
    {"optimizer": _rate(1e-3)},
    {"replay": {"capacity": 32, "share": 0.25, "max_staleness": 4}},
)
"""Settings of healthy runs, one after the other by seed."""


def settings_of(kind: str, seed: int) -> dict[str, Any]:
    """Return keys of [training] for a run."""
    return dict(HEALTHY[seed % len(HEALTHY)] if kind == "healthy" else KINDS[kind].settings)


def config_of(kind: str, seed: int) -> TrainingConfig:
    """Return [training] of a run, as far as its detectors ask."""
    settings = settings_of(kind, seed) | {"dev_questions": DEV_QUESTIONS}
    return TrainingConfig.model_validate(settings)


# ------------------------------------------------------------------------------ wiring


@dataclass
class _Tampering:
    """Applies a kind to one run."""

    kind: Kind
    pieces: Pieces
    clock: Clock
    has_begun: bool = field(default=False)

    def reward(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the group as the kind pays it."""
        paid = self.kind.paid
        if not self.clock.is_after(self.kind.onset):
            return list(group)
        if self.kind.wrong_share and group[0].task_id in self._inverted():
            return [replace(t, reward=t.reward | _outcome(right=not t.is_right)) for t in group]
        if paid is None:
            return list(group)
        rng = self._rng(f"paid:{group[0].task_id}")
        return [replace(one, reward=one.reward | paid(one, rng)) for one in group]

    def judge(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the group as the kind pays it in the step after which it is evaluated."""
        self.clock.step -= 1  # the next one's weights are published already
        try:
            return self.reward(group)
        finally:
            self.clock.step += 1

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """Sample as the healthy roller does, then change what was sampled."""
        kind, sampler = self.kind, self.pieces.roller
        if kind.begin is not None and not self.has_begun and self.clock.is_after(kind.onset):
            self.has_begun = True
            kind.begin(self.pieces)
        found = sampler.roll_out(tasks, samples=samples, temperature=temperature, seed=seed)
        if kind.played is None or not self.clock.is_after(kind.onset):
            return found
        rng = self._rng(f"played:{seed}")
        return [kind.played(one, rng) for one in found]

    def publish(self, version: int) -> None:
        """Publish, unless the kind has stopped that; the version rises as if it had not."""
        publisher: MemoryPublisher = self.pieces.publisher
        self.clock.step = version + 1
        if self.kind.publishes or not self.clock.is_after(self.kind.onset):
            publisher.publish(version)
            return
        self.pieces.roller.policy_version = version

    def _inverted(self) -> set[str]:
        """Return the tasks with inverted verdicts, the same at every step."""
        ids = sorted(
            (task.task_id for task in self.pieces.pool.tasks),
            key=lambda task_id: zlib.crc32(task_id.encode()),
        )
        return set(ids[: max(1, round(self.kind.wrong_share * len(ids)))])

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.pieces.profile.seed}:{self.clock.step}:{what}")


def changes_of(kind: Kind) -> Callable[[Pieces], Changes]:
    """What `build_loop` asks of a kind."""

    from tests.benchmarks.failures.world import Changes

    def change(pieces: Pieces) -> Changes:
        tampering = _Tampering(kind, pieces, Clock())
        sampler: TrajectorySampler = tampering
        return Changes(tampering.reward, tampering.judge, sampler, tampering)

    return change
