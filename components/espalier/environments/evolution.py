"""New tasks from failed ones, in breadth (WebRL, Qi et al. 2024, arXiv:2411.02337).

A family defines how one failed task is varied. This module draws failed tasks and rejects
variations that training already has. Every new task is one that the family could have generated
itself for the training split. Their estimated value decides which are kept (`self_play.value_band`,
section 3.2 of the paper).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from espalier.config import Profile, WebRLConfig
from espalier.environments.proposals import ProposalRequest, ProposedTasks
from espalier.records import Task

SOURCE = "webrl"
"""Source of the new tasks, in families that set one."""
_TRIES = 20
"""Draws per requested task before the generator gives up."""


class TaskEvolution:
    """A `TaskProposer` that varies failed tasks."""

    def __init__(self, vary: Callable[[Task, random.Random], Task | None]) -> None:
        """Store `vary`, which makes a new task of a failed one, or None if it cannot."""
        self._vary = vary

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """Return variations of failed tasks; none if no task has failed."""
        dice = random.Random(order.seed)
        known = {task.task_id for task in order.known}
        found: list[Task] = []
        refused: Counter[str] = Counter()
        for _ in range(_TRIES * order.num_tasks if order.failed else 0):
            if len(found) == order.num_tasks:
                break
            varied = self._vary(dice.choice(order.failed), dice)
            if varied is None:
                refused["no_variation"] += 1
            elif varied.task_id in known:
                refused["known"] += 1
            else:
                known.add(varied.task_id)
                found.append(varied)
        return ProposedTasks(found, dict(refused))


def refuse_teacher_proposals(profile: Profile, made: str) -> None:
    """Refuse `self_play.proposer = "teacher"` for a family that varies tasks by rule.

    Args:
        profile: the profile of the run.
        made: what the family makes by rule, for the message.

    Raises:
        ValueError: `self_play.proposer` is "teacher".
    """
    if isinstance(profile.self_play, WebRLConfig) and profile.self_play.proposer == "teacher":
        raise ValueError(
            'self_play.proposer = "teacher" varies questions over a knowledge graph; leave it '
            f'out for environment.name = "{profile.environment.name}", whose {made} are made by '
            "rule"
        )
