"""Greedy exact match on dev questions: what checkpoints are chosen by, never the held-out set."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.rollout.roller import RollsOut
from espalier.tasks import Task


def dev_exact_match(roller: RollsOut, tasks: Sequence[Task]) -> float:
    """Share of `tasks` answered right by greedy decoding, 0-1, of those that were judged."""
    trajectories = roller.roll_out(tasks, samples=1, temperature=0.0, seed=0)
    judged = [trajectory for trajectory in trajectories if not trajectory.is_lost]
    return sum(t.reward["outcome"] > 0 for t in judged) / max(1, len(judged))
