"""One client of an OpenEnv server: its episode, stepped by tool calls.

Tools are called as in OpenEnv's MCP environments (`call_tool`, `list_tools`). An additional tool,
`answer`, gives the final answer, or a message to the user in families that have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from espalier.environments.contract import (
    Environment,
    EnvironmentLostError,
    Step,
    waited,
)
from espalier.environments.losses import policy_losses, release, score
from espalier.records import Action, FinalAnswer, ToolCall, ToolCalls
from espalier.records.message import ToolSpec
from espalier.records.trajectory import FinishReason
from espalier.wire.openenv import (
    CallTool,
    ErrorCode,
    ListTools,
    MessageFault,
    ResetData,
    observation,
    parsed_data,
)
from espalier_interop.openenv_serving.tasks import ServedTasks, public

T = TypeVar("T")

ANSWER = ToolSpec(
    name="answer",
    description="Give the final answer, or say something to the user.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
)


class SessionLost(Exception):
    """The episode cannot go on and is not scored; the next reset begins another."""


class Session:
    """The successive episodes of one client."""

    def __init__(self, served: ServedTasks, number: int, *, step_timeout_s: float) -> None:
        """Create a session without an episode.

        Args:
            served: the tasks.
            number: number of the session; resets that name no task get tasks in turn from here on.
            step_timeout_s: how long a reset, a step or a score may take.
        """
        self._served = served
        self._next = number
        self._step_timeout_s = step_timeout_s
        self._environment: Environment | None = None
        self._episode_id = ""
        self._steps = 0
        self._specs = served.specs

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode, and abandon the one before.

        Raises:
            MessageFault: the task does not exist, or the data is malformed.
            SessionLost: the environment cannot be created.
        """
        asked = parsed_data(data, ResetData)
        offered = self._served.chosen(asked, self._next)
        self._next += 1
        self.close()
        environment = offered.environments(offered.task)
        self._environment = environment
        opening = await self._in_time(lambda: environment.reset(offered.task))
        self._specs, self._steps = opening.tools, 0
        self._episode_id = asked.episode_id or offered.task.task_id
        messages = [{"role": one.role, "content": one.content} for one in opening.messages]
        content = {
            **public(offered.task),
            "prompt": messages,
            "instructions": self._served.instructions,
        }
        return observation(content)

    async def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Play one action and return the observation.

        Raises:
            MessageFault: the action is malformed, or there is no episode.
            SessionLost: the environment is gone.
        """
        if data.get("type") == "list_tools":
            parsed_data(data, ListTools)
            return observation({"tools": self.tools()})
        call = parsed_data(data, CallTool)
        environment = self._environment
        if environment is None:
            raise MessageFault("no episode is being played: send a reset first")
        action = _action(call)
        self._steps += 1
        step = None
        try:
            with policy_losses(environment):
                step = await self._in_time(lambda: environment.step(action))
        except TimeoutError:
            environment.cut_off(FinishReason.TIMEOUT)
        step = step or Step((), environment.finish_reason)
        said = "\n".join(one.content for one in step.messages)
        content = {"tool_name": call.tool_name, "result": said, "error": None}
        if not step.done:
            return observation(content, reward=step.reward or None)
        return await self._scored(environment, content, step.reward)

    async def _scored(
        self, environment: Environment, content: Mapping[str, Any], of_step: float
    ) -> dict[str, Any]:
        self._environment = None
        reason = environment.finish_reason
        assert reason is not None, "an episode that is done has ended"
        try:
            terms = await score(environment, self._in_time)
        except TimeoutError as error:
            raise SessionLost(
                f"the verifier took longer than {self._step_timeout_s:g} s; reset to go on"
            ) from error
        # a result that ends the episode is not among the step's messages
        results = environment.tool_results
        if not content["result"] and results and content["tool_name"] != ANSWER.name:
            content = {**content, "result": results[-1].content}
        return observation(
            content,
            reward=sum(terms.values()) + of_step,
            done=True,
            metadata={"reward_terms": dict(terms), "finish_reason": reason.value},
        )

    async def _in_time(self, begin: Callable[[], T | Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._step_timeout_s):
                return await waited(begin())
        except EnvironmentLostError as error:
            self.close()
            raise SessionLost(f"{error}; reset to go on") from error

    def tools(self) -> list[dict[str, Any]]:
        """Return the tools of the episode, `answer` last, as `list_tools` shows them."""
        return tools_of(self._specs)

    def state(self) -> dict[str, Any]:
        """Return what OpenEnv calls the state."""
        return {"episode_id": self._episode_id or None, "step_count": self._steps}

    def close(self) -> None:
        """Abandon the running episode, if there is one."""
        environment, self._environment = self._environment, None
        release(environment)


def _action(call: CallTool) -> Action:
    if call.tool_name != ANSWER.name:
        return ToolCalls((ToolCall(name=call.tool_name, arguments=call.arguments),))
    text = call.arguments.get("text")
    if not isinstance(text, str) or len(call.arguments) != 1:
        raise MessageFault(
            'arguments: of `answer` they are {"text": "..."}', ErrorCode.VALIDATION_ERROR
        )
    return FinalAnswer(text)


def tools_of(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools in OpenEnv's form, with `answer` last."""
    return [
        {"name": one.name, "description": one.description, "input_schema": one.parameters}
        for one in (*specs, ANSWER)
    ]
