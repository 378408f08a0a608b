"""Episodes in which the policy calls tools and then answers, for any family."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from espalier.config import RewardConfig
from espalier.environments.contract import (
    Environment,
    Opening,
    ProgramBrokeSandboxError,
    Step,
    sandbox_losses,
)
from espalier.environments.tools import Tool, refused, unknown_tool
from espalier.records import Action, FinalAnswer, Malformed, Message, Task, ToolCall, ToolCalls
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult

TurnResults = Sequence[Sequence[ToolResult]]
"""What was called: one sequence of results for each message of the policy that called a tool."""
Verify = Callable[[Task, str | None, TurnResults], float | Awaitable[float]]
"""Task, answer (None where there is none) and results -> outcome, in the family's own range."""


def _nothing() -> None:
    """Default of `on_end`: nothing to release."""


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Tools, verifier and limits that the episodes of a family share."""

    tools: Sequence[Tool]
    verify: Verify
    max_turns: int
    """Messages that call tools; the last of them ends the episode."""
    max_turn_calls: int
    """Calls of one message that are made; any further one is refused, as an observation."""
    reward: RewardConfig
    read_answer: Callable[[str], str] = _as_it_is
    """Extracts the answer from a final message."""
    on_end: Callable[[], None] = field(default=_nothing)
    """Called once, when the episode is over."""

    def environment(self) -> Environment:
        """A fresh environment; asynchronous if a tool or the verifier is."""
        waits = any(tool.is_async for tool in self.tools) or _waits(self.verify)
        return AsyncToolEnvironment(self) if waits else ToolEnvironment(self)


def _waits(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(getattr(function, "func", function))


class _Episode:
    """State and rules shared by synchronous and asynchronous episodes."""

    def __init__(self, rules: EpisodeRules) -> None:
        self._rules = rules
        self._tools = {tool.spec.name: tool for tool in rules.tools}
        self._turns: list[list[ToolResult]] = []
        self._task: Task | None = None
        self.tool_results: list[ToolResult] = []
        self.answer: str | None = None
        self.finish_reason: FinishReason | None = None

    def reset(self, task: Task) -> Opening:
        """See `Environment`."""
        self._task = task
        return Opening(task.prompt, tuple(tool.spec for tool in self._rules.tools))

    def cut_off(self, reason: FinishReason) -> None:
        """See `Environment`."""
        if reason is FinishReason.PROGRAM_BROKE_SANDBOX:
            self.answer = None
        self._finish(reason)

    @property
    def task(self) -> Task:
        """The task of this episode."""
        assert self._task is not None, "an episode begins with a reset"
        return self._task

    def _answered(self, text: str) -> Step:
        answer = self._rules.read_answer(text)
        if not answer.strip():  # an empty box is no answer, and earns nothing for its format
            return self._finish(FinishReason.PARSE_ERROR)
        self.answer = answer
        return self._finish(FinishReason.ANSWERED)

    def _called(self, results: Sequence[ToolResult]) -> Step:
        self.tool_results.extend(results)
        self._turns.append(list(results))
        if len(self._turns) >= self._rules.max_turns:
            return self._finish(FinishReason.MAX_TURNS)
        return Step(
            tuple(
                Message(role="tool", content=result.content, call_id=result.call.call_id)
                for result in results
            )
        )

    def _broke(
        self, call: ToolCall, results: Sequence[ToolResult], error: ProgramBrokeSandboxError
    ) -> Step:
        """End the episode at a call that ended its sandbox, with what happened as its result."""
        self._called([*results, refused(call, str(error))])
        return self._finish(FinishReason.PROGRAM_BROKE_SANDBOX)

    def _finish(self, reason: FinishReason) -> Step:
        if self.finish_reason is None:
            self._rules.on_end()
        self.finish_reason = reason
        return Step((), reason)

    def _terms(self, outcome: float) -> RewardBreakdown:
        """`outcome`, in the family's own range, and `format`: it ended with an answer."""
        well_formed = self.finish_reason is FinishReason.ANSWERED
        return {
            "outcome": self._rules.reward.outcome * outcome,
            "format": self._rules.reward.format * well_formed,
        }

    def _call(self, place: int, call: ToolCall) -> ToolResult | Awaitable[ToolResult]:
        """The result of a message's call at `place`, counted from 0."""
        if place >= self._rules.max_turn_calls:
            return refused(
                call, f"not called; at most {self._rules.max_turn_calls} calls in one message"
            )
        tool = self._tools.get(call.name)
        return unknown_tool(call, self._tools) if tool is None else tool.call(call, self.task)


class ToolEnvironment(_Episode):
    """An episode with synchronous tools and verifier."""

    def step(self, action: Action) -> Step:
        """See `Environment`."""
        match action:
            case ToolCalls(calls):
                results: list[ToolResult] = []
                for place, call in enumerate(calls):
                    try:
                        result = self._call(place, call)
                    except ProgramBrokeSandboxError as error:
                        return self._broke(call, results, error)
                    assert isinstance(result, ToolResult), (
                        "an asynchronous tool needs AsyncToolEnvironment"
                    )
                    results.append(result)
                return self._called(results)
            case FinalAnswer(text):
                return self._answered(text)
            case Malformed():
                return self._finish(FinishReason.PARSE_ERROR)

    def score(self) -> RewardBreakdown:
        """See `Environment`."""
        with sandbox_losses():
            outcome = self._rules.verify(self.task, self.answer, self._turns)
        assert not isinstance(outcome, Awaitable), (
            "an asynchronous verifier needs AsyncToolEnvironment"
        )
        return self._terms(outcome)


class AsyncToolEnvironment(_Episode):
    """An episode with an asynchronous tool or verifier."""

    async def step(self, action: Action) -> Step:
        """See `Environment`."""
        match action:
            case ToolCalls(calls):
                results: list[ToolResult] = []
                for place, call in enumerate(calls):
                    try:
                        results.append(await _waited(self._call(place, call)))
                    except ProgramBrokeSandboxError as error:
                        return self._broke(call, results, error)
                return self._called(results)
            case FinalAnswer(text):
                return self._answered(text)
            case Malformed():
                return self._finish(FinishReason.PARSE_ERROR)

    async def score(self) -> RewardBreakdown:
        """See `Environment`."""
        with sandbox_losses():
            outcome = self._rules.verify(self.task, self.answer, self._turns)
            judged = await outcome if isinstance(outcome, Awaitable) else outcome
        return self._terms(judged)


async def _waited(result: ToolResult | Awaitable[ToolResult]) -> ToolResult:
    return await result if isinstance(result, Awaitable) else result
