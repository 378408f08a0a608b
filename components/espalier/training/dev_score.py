"""Greedy exact match on dev questions: what checkpoints are chosen by, never the held-out set."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.records import Task
from espalier.rollout.roller import RollsOut


def dev_exact_match(roller: RollsOut, tasks: Sequence[Task]) -> float:
    """Share of `tasks` answered right by greedy decoding, 0-1, of those that were judged."""
    trajectories = roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
    judged = [trajectory for trajectory in trajectories if not trajectory.is_lost]
    return sum(t.is_right for t in judged) / max(1, len(judged))
