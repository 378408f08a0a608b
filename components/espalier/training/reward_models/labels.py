"""Labels of steps by rollouts: how often the policy ends right from there (Math-Shepherd).

Wang et al. 2024 (arXiv:2312.08935), eq. 3 and 4. A step is a turn: one message of the policy, and
its observations. The last step is labelled by the outcome itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import EpisodeStart, Roller, start_after
from espalier.training.packing import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAttempt:
    """An attempt, and the value of each of its labelled steps.

    An example with three turns, where one of four completions after the second turn ends right:

        shares   0.5  0.25  0.0      turns   0  1  2
    """

    trajectory: Trajectory
    turns: tuple[int, ...]
    """Numbers of the labelled turns."""
    shares: tuple[float, ...]
    """Share of the completions from each of those turns that ended right, 0-1."""

    @property
    def positions(self) -> tuple[int, ...]:
        """Return where a head reads the score: the last token of each turn's action."""
        return tuple(self.trajectory.turns[turn].action_end - 1 for turn in self.turns)

    @property
    def sequence(self) -> TrainingSequence:
        """Return the attempt as a model reads it."""
        return TrainingSequence(
            token_ids=self.trajectory.token_ids,
            loss_mask=self.trajectory.action_mask,
            window_starts=self.trajectory.window_starts,
        )

    def targets(self, labels: Literal["soft", "hard"]) -> tuple[float, ...]:
        """Return what a head is fitted to: the shares, or whether any completion ended right."""
        return self.shares if labels == "soft" else tuple(float(s > 0) for s in self.shares)


def label_outcomes(attempts: Sequence[Trajectory]) -> list[LabelledAttempt]:
    """Label the last step of each attempt by its outcome, for an outcome reward model."""
    return [
        LabelledAttempt(trajectory=one, turns=(len(one.turns) - 1,), shares=(float(one.is_right),))
        for one in attempts
        if _is_usable(one)
    ]


def label_steps(
    attempts: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    roller: Roller,
    *,
    completions: int,
    temperature: float,
    seed: int,
) -> list[LabelledAttempt]:
    """Label every step of each attempt by the share of completions that end right.

    Args:
        attempts: at `tasks`; those that were lost, or cut into several contexts, are left out.
        tasks: the tasks by id.
        roller: samples the completions.
        completions: number of completions of each step except the last.
        temperature: temperature of the completions.
        seed: seed of their draws.
    """
    usable = [one for one in attempts if _is_usable(one)]
    starts: list[EpisodeStart] = []
    for attempt in usable:
        task = tasks[attempt.task_id]
        starts += [start_after(task, attempt, n) for n in range(1, len(attempt.turns))]
    ends = iter(roller.complete(starts, samples=completions, temperature=temperature, seed=seed))
    labelled: list[LabelledAttempt] = []
    for attempt in usable:
        turns: list[int] = []
        shares: list[float] = []
        for turn in range(len(attempt.turns) - 1):
            judged = [end for end in (next(ends) for _ in range(completions)) if not end.is_lost]
            if judged:
                turns.append(turn)
                shares.append(sum(end.is_right for end in judged) / len(judged))
        turns.append(len(attempt.turns) - 1)
        shares.append(float(attempt.is_right))
        labelled.append(
            LabelledAttempt(trajectory=attempt, turns=tuple(turns), shares=tuple(shares))
        )
    return labelled


def _is_usable(attempt: Trajectory) -> bool:
    return not attempt.is_lost and len(attempt.turns) > 0 and len(attempt.windows) == 1
