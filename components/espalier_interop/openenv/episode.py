"""One episode on a server: begun with the first action, scored by the rewards it sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from espalier.environments.episode import TurnResults
from espalier.environments.tools import ToolError, ToolOutput
from espalier.records import DataError, JsonObject, Task
from espalier.wire.openenv import Observed
from espalier_interop.openenv.config import OpenEnvConfig
from espalier_interop.openenv.remote_tools import ACT, read_result
from espalier_interop.openenv.session import ActionRefused, RemoteSession

_OVER = "(the episode is over)"


class RemoteEpisode:
    """Plays calls in a session, and adds up their rewards."""

    def __init__(
        self, session: RemoteSession, config: OpenEnvConfig, reset: Mapping[str, Any]
    ) -> None:
        self._session = session
        self._config = config
        self._reset = reset
        self._has_begun = False
        self._rewards: list[float] = []
        self.is_over = False
        """Whether the server said that the episode is done."""

    def playing(self, tool: str) -> Callable[[JsonObject], Awaitable[ToolOutput]]:
        """Return the function by which the server plays calls of `tool`.

        It raises ToolError if the server refuses a call, and EnvironmentLostError if the server or
        the connection to it fails.
        """

        async def play(arguments: JsonObject) -> ToolOutput:
            acts = self._config.actions == "schema" and tool == ACT
            try:
                told = await self._played(arguments if acts else _tool_action(tool, arguments))
            except ActionRefused as refused:
                raise ToolError(str(refused)) from refused
            output = read_result(
                told.observation, self._config.result, self._config.max_result_characters
            )
            if not output.succeeded:
                raise ToolError(output.content)
            # the last result is the episode's answer, so it must not be empty
            return output if output.content.strip() or not told.done else ToolOutput(_OVER)

        return play

    def speaking(self, tool: str, argument: str) -> Callable[[str], Awaitable[str | None]]:
        """Return the function that gives messages of the policy to `tool` and returns replies."""

        async def reply(said: str) -> str | None:
            try:
                told = await self._played(_tool_action(tool, {argument: said}))
            except ActionRefused as refused:
                return f"error: {refused}"
            if told.done:
                return None
            output = read_result(
                told.observation, self._config.result, self._config.max_result_characters
            )
            return output.content

        return reply

    async def _played(self, action: Mapping[str, Any]) -> Observed:
        if not self._has_begun:
            self._has_begun = True
            await self._session.reset(self._reset)
        told = await self._session.step(action)
        if told.reward is not None:
            self._rewards.append(told.reward)
        self.is_over = told.done
        return told

    async def outcome(self, task: Task, _answer: str | None, _turns: TurnResults) -> float:
        """Return the sum of the rewards.

        An episode that was cut off before the server sent any reward gets the lowest outcome.

        Raises:
            DataError: the server ended the episode without any reward.
        """
        if self._rewards:
            return sum(self._rewards)
        if self.is_over:
            raise DataError(
                f"task {task.task_id}: {self._config.where} ended the episode {dict(self._reset)} "
                "without a reward; a missing reward is never a 0"
            )
        return self._config.rewards[0]

    def end(self) -> None:
        """Drop the session."""
        self._session.abort()


def _tool_action(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
