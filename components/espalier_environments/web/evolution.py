"""Variations of a failed instruction: on another site, or about the same record.

A variation is the same kind of task on a site that training has not used, or another kind about the
same record. Each has the checks of all generated tasks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

from espalier.config import SplitsConfig
from espalier.records import Task
from espalier_environments.web.config import WebConfig
from espalier_environments.web.tasks import site_tasks

_NEW_SITES = 100_000
"""Number of sites beyond `environment.sites` from which tasks are drawn."""
_OTHER_SITE_SHARE = 0.7


class WebVariations:
    """Varies tasks of generated sites."""

    def __init__(self, config: WebConfig, splits: SplitsConfig, family: str) -> None:
        self._config = config
        self._splits = splits
        self._family = family

    def varied(self, failed: Task, dice: random.Random) -> Task | None:
        """Return another training task; None if the site has none that fits."""
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
