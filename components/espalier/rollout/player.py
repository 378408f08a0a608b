"""Episodes that a program of the user plays, instead of the built-in loop.

A distribution brings the player by an entry point `agent` of the group `espalier.players`: a
function such as `agent_player` of `espalier_interop.agents`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib import metadata
from typing import Protocol, cast

from espalier.config import AgentConfig, EpisodeConfig
from espalier.dialects.dialect import Dialect
from espalier.environments import Environments
from espalier.records import ProfileError, Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.engines.engine import Engine, Sampling
from espalier.rollout.episode import ToolRunner

ENTRY_POINTS = "espalier.players"


class Player(Protocol):
    """Plays whole episodes under a policy."""

    async def play(self, task: Task, sampling: Sampling) -> Trajectory:
        """Play one episode of a task; one without a reward is a trajectory that is lost."""
        ...


class OpensPlayer(Protocol):
    """Opens the player that a profile's section `agent` asks for."""

    def __call__(
        self,
        config: AgentConfig,
        engine: Engine,
        dialect: Dialect,
        environments: Environments,
        tools: ToolRunner,
        episode: EpisodeConfig,
    ) -> AbstractAsyncContextManager[Player]:
        """Return the context in which the player plays, over an engine that runs."""
        ...


def installed_player(config: AgentConfig) -> OpensPlayer:
    """Return what opens the player of an agent.

    Raises:
        ProfileError: no installed distribution has one.
    """
    for point in metadata.entry_points(group=ENTRY_POINTS, name="agent"):
        return cast("OpensPlayer", point.load())
    raise ProfileError(
        f"{config.told} plays by a package that is not installed: `pip install "
        "espalier-agents-interop`, or leave the section [agent] out"
    )
