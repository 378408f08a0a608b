"""Closes a group without its stragglers, so that a step does not wait for its slowest episode."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from espalier.config import StragglersConfig
from espalier.records.trajectory import Trajectory


class Stragglers:
    """Ends the last episodes of groups by the profile's rule."""

    def __init__(self, rule: StragglersConfig) -> None:
        self._rule = rule
        self._cut: set[asyncio.Task[Trajectory]] = set()

    async def close(self, group: Sequence[asyncio.Task[Trajectory]]) -> None:
        """Wait until enough episodes of a group have ended and the extra time is up; end the rest.

        Args:
            group: episodes that have begun, in tasks that call `has_cut` when they are cancelled.
        """
        late = set(group)
        needed = math.ceil(self._rule.share * len(group))
        while late and len(group) - len(late) < needed:
            _, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
        if late:
            _, late = await asyncio.wait(late, timeout=self._rule.patience_s)
        for episode in late:
            self._cut.add(episode)
            episode.add_done_callback(self._cut.discard)
            episode.cancel()

    def has_cut(self, episode: asyncio.Task[Trajectory] | None) -> bool:
        """Return whether an episode was cancelled as a straggler, rather than with all others."""
        return episode in self._cut


async def all_ended(
    episodes: Sequence[asyncio.Task[Trajectory]],
    *,
    group_size: int,
    stragglers: Stragglers | None,
) -> list[Trajectory]:
    """Await all episodes; if one fails or this call is cancelled, cancel the others.

    Args:
        episodes: the episodes, group by group.
        group_size: episodes per group.
        stragglers: ends the slowest of each group; None waits for all.
    """
    tasks: list[asyncio.Task[Any]] = [*episodes]
    if stragglers is not None:
        for start in range(0, len(episodes), max(1, group_size)):
            group = episodes[start : start + group_size]
            tasks.append(asyncio.create_task(stragglers.close(group)))
    try:
        return await asyncio.gather(*episodes)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
