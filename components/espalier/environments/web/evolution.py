"""New tasks from failed instructions, in breadth (WebRL, Qi et al. 2024, arXiv:2411.02337).

A failed instruction is varied: the same kind of task on a site that training has not met, or
another kind of task about the same record. Every task comes with the checks that all made tasks
have, and is of the training split; which of them are kept, their value decides
(`self_play.value_band`, section 3.2 of the paper).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import cast

from espalier.config import SplitsConfig
from espalier.environments.web.config import WebConfig
from espalier.environments.web.tasks import site_tasks
from espalier.records import Task
from espalier.synthesis.self_play import ProposalRequest, ProposedTasks

_NEW_SITES = 100_000
"""Sites beyond those of `environment.sites` that tasks are drawn from."""
_TRIES = 20
"""Draws for each task that is asked for, before the source counts as dry."""


class WebProposer:
    """Varies failed tasks of made sites."""

    def __init__(self, config: WebConfig, splits: SplitsConfig, family: str) -> None:
        self._config = config
        self._splits = splits
        self._family = family

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """See `TaskProposer`; nothing where nothing has failed."""
        dice = random.Random(order.seed)
        known = {task.task_id for task in order.known}
        found: list[Task] = []
        refused: Counter[str] = Counter()
        for _ in range(_TRIES * order.num_tasks if order.failed else 0):
            if len(found) == order.num_tasks:
                break
            varied = self._varied(dice.choice(order.failed), dice)
            if varied is None:
                refused["no_variation"] += 1
            elif varied.task_id in known:
                refused["known"] += 1
            else:
                known.add(varied.task_id)
                found.append(varied)
        return ProposedTasks(found, dict(refused))

    def _varied(self, failed: Task, dice: random.Random) -> Task | None:
        kind, about = failed.metadata.pattern, failed.extra.get("entities")
        if dice.random() < _OTHER_SITE_SHARE:
            tasks = self._tasks(self._config.sites + dice.randrange(_NEW_SITES))
            fitting = [task for task in tasks if task.metadata.pattern == kind]
        else:
            tasks = self._tasks(cast("int", failed.arguments["site"]))
            fitting = [
                task
                for task in tasks
                if task.extra.get("entities") == about and task.metadata.pattern != kind
            ]
        return dice.choice(fitting) if fitting else None

    def _tasks(self, number: int) -> Sequence[Task]:
        return site_tasks(self._config, self._splits, "train", number, self._family)


_OTHER_SITE_SHARE = 0.7
