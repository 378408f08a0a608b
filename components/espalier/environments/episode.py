"""Episodes of tool calls and a final answer, for any family."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from espalier.config import RewardConfig
from espalier.environments.contract import (
    Environment,
    Opening,
    ProgramBrokeSandboxError,
    Step,
    sandbox_losses,
    waited,
)
from espalier.environments.tools import Tool, refused, unknown_tool
from espalier.records import (
    Action,
    DataError,
    FinalAnswer,
    Malformed,
    Message,
    Task,
    ToolCall,
    ToolCalls,
)
from espalier.records.spans import measured
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult

T = TypeVar("T")

TurnResults = Sequence[Sequence[ToolResult]]
"""One sequence of results for each message of the policy that called a tool."""
Verify = Callable[[Task, str | None, TurnResults], float | Awaitable[float]]
"""Task, answer (None if there is none) and results -> outcome, in the family's own range."""
Terms = Callable[[Task, str | None, TurnResults], Mapping[str, float]]
"""Arguments of `Verify` -> further named terms of the reward."""
Reply = Callable[[str], str | Awaitable[str | None] | None]
"""A message of the policy to a user -> the user's answer; None if the user has left."""


def _nothing() -> None:
    """Default of `on_end`: release nothing."""


def _never() -> bool:
    """Default of `is_over`: only calls of `ending_tools` end an episode."""
    return False


def _as_it_is(text: str) -> str:
    return text


def _no_terms(_task: Task, _answer: str | None, _turns: TurnResults) -> Mapping[str, float]:
    """Default of `further_terms`: the reward consists of outcome and format only."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """The tools, verifier and limits that a family's episodes share."""

    tools: Sequence[Tool]
    verify: Verify
    max_turns: int
    """Messages that call tools or address the user; the last of them ends the episode."""
    max_turn_calls: int
    """Calls that are executed per message; further calls are refused with an observation."""
    reward: RewardConfig
    outcome_span: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest value that `verify` returns."""
    outcome_scale: float = 1.0
    """Factor on the outcome, besides `reward.outcome`."""
    read_answer: Callable[[str], str] = _as_it_is
    """Extracts the answer from a final message."""
    ending_tools: frozenset[str] = frozenset()
    """Names of tools whose first successful call ends the episode; its result is the answer."""
    calls_are_answer: bool = False
    """Whether the first message ends the episode: its calls are recorded, not executed, and
    `written_calls` turns them into the answer. A message without a call is an answer as well."""
    reply: Reply | None = None
    """A user who replies to the policy's messages; once the user has left, a message is the final
    answer."""
    is_over: Callable[[], bool] = field(default=_never)
    """Whether the world behind the tools ended the episode with the last call, whose result is then
    the answer."""
    further_terms: Terms = field(default=_no_terms)
    """Terms of the reward besides outcome and format; their names must differ from these."""
    on_end: Callable[[], None] = field(default=_nothing)
    """Called once, when the episode is over."""

    def environment(self) -> Environment:
        """Return a fresh environment; an asynchronous one if a tool, verifier or user is."""
        waits = any(tool.is_async for tool in self.tools) or _waits(self.verify)
        waits = waits or (self.reply is not None and _waits(self.reply))
        return AsyncToolEnvironment(self) if waits else ToolEnvironment(self)


def written_calls(calls: Sequence[ToolCall]) -> str:
    """Return calls as an answer: a JSON array of `{"name": ..., "arguments": ...}`."""
    return json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls])


def _waits(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(getattr(function, "func", function))


class _Episode:
    """What an episode does, whether its tools are waited for or not."""

    def __init__(self, rules: EpisodeRules) -> None:
        self._rules = rules
        self._tools = {tool.spec.name: tool for tool in rules.tools}
        self._turns: list[list[ToolResult]] = []
        self._answered_messages = 0
        """Number of policy messages that a tool or the user answered."""
        self._task: Task | None = None
        self.tool_results: list[ToolResult] = []
        self.answer: str | None = None
        self.finish_reason: FinishReason | None = None

    def reset(self, task: Task) -> Opening:
        """Start the episode and return the prompt and tools."""
        self._task = task
        return Opening(task.prompt, tuple(tool.spec for tool in self._rules.tools))

    def cut_off(self, reason: FinishReason) -> None:
        """End the episode; what broke its sandbox, or cannot be read, is no answer."""
        if reason in (FinishReason.PROGRAM_BROKE_SANDBOX, FinishReason.PARSE_ERROR):
            self.answer = None
        self._finish(reason)

    @property
    def task(self) -> Task:
        """The task of this episode."""
        assert self._task is not None, "the episode was reset"
        return self._task

    async def _step(self, action: Action) -> Step:
        match action:
            case ToolCalls(calls) if self._rules.calls_are_answer:
                return self._answered_by_calls(calls)
            case ToolCalls(calls):
                results: list[ToolResult] = []
                for place, call in enumerate(calls):
                    try:
                        with measured("tools"):
                            results.append(await waited(self._call(place, call)))
                    except ProgramBrokeSandboxError as error:
                        self._called([*results, refused(call, str(error))])
                        return self._finish(FinishReason.PROGRAM_BROKE_SANDBOX)
                    if self._ends(results[-1]):
                        break
                return self._called(results)
            case FinalAnswer(text) if self._rules.reply is not None and text.strip():
                said = await waited(self._rules.reply(text))
                if said is None:  # the user has left
                    return self._answered(text)
                return self._going_on([Message(role="user", content=said)])
            case FinalAnswer(text):
                return self._answered(text)
            case Malformed():
                return self._finish(FinishReason.PARSE_ERROR)

    async def _score(self) -> RewardBreakdown:
        with sandbox_losses():
            outcome = await waited(self._rules.verify(self.task, self.answer, self._turns))
        return self._terms(outcome)

    def _answered(self, text: str) -> Step:
        answer = self._rules.read_answer(text)
        if not answer.strip():  # an empty answer gets no format reward
            return self._finish(FinishReason.PARSE_ERROR)
        self.answer = answer
        return self._finish(FinishReason.ANSWERED)

    def _called(self, results: Sequence[ToolResult]) -> Step:
        self.tool_results.extend(results)
        self._turns.append(list(results))
        if results and self._ends(results[-1]):
            return self._answered(results[-1].content)
        return self._going_on(
            Message(role="tool", content=result.content, call_id=result.call.call_id)
            for result in results
        )

    def _ends(self, result: ToolResult) -> bool:
        """Return whether no further call follows this one."""
        if result.succeeded and result.call.name in self._rules.ending_tools:
            return True
        return self._rules.is_over()

    def _answered_by_calls(self, calls: Sequence[ToolCall]) -> Step:
        results = [
            ToolResult(call=call, content="", succeeded=True, exists=call.name in self._tools)
            for call in calls
        ]
        self.tool_results.extend(results)
        self._turns.append(results)
        self.answer = written_calls(calls)
        return self._finish(FinishReason.ANSWERED)

    def _going_on(self, messages: Iterable[Message]) -> Step:
        self._answered_messages += 1
        if self._answered_messages >= self._rules.max_turns:
            return self._finish(FinishReason.MAX_TURNS)
        return Step(tuple(messages))

    def _finish(self, reason: FinishReason) -> Step:
        if self.finish_reason is None:
            self._rules.on_end()
        self.finish_reason = reason
        return Step((), reason)

    def _terms(self, outcome: float) -> RewardBreakdown:
        """Return the reward terms: the scaled outcome, the format, and the family's further terms.

        Raises:
            DataError: the verifier's outcome is NaN or outside its range; this is never a 0.
        """
        low, high = self._rules.outcome_span
        if not low <= outcome <= high:  # also true for NaN
            raise DataError(
                f"task {self.task.task_id}: the verifier of {self.task.environment} gave "
                f"{outcome}, outside of the range {low:g} to {high:g} that `outcome_span` states"
            )
        well_formed = self.finish_reason is FinishReason.ANSWERED
        terms = {
            "outcome": self._rules.reward.outcome * self._rules.outcome_scale * outcome,
            "format": self._rules.reward.format * well_formed,
        }
        further = dict(self._rules.further_terms(self.task, self.answer, self._turns))
        assert not terms.keys() & further.keys(), f"two terms are called {sorted(further)}"
        return terms | further

    def _call(self, place: int, call: ToolCall) -> ToolResult | Awaitable[ToolResult]:
        """Execute a message's call at `place`, counted from 0, and return its result."""
        if place >= self._rules.max_turn_calls:
            return refused(
                call, f"not called; at most {self._rules.max_turn_calls} calls in one message"
            )
        tool = self._tools.get(call.name)
        return unknown_tool(call, self._tools) if tool is None else tool.call(call, self.task)


class ToolEnvironment(_Episode):
    """An episode whose tools, user and verifier are synchronous."""

    def step(self, action: Action) -> Step:
        """Execute the calls of one message, or take it as the final answer."""
        return _at_once(self._step(action))

    def score(self) -> RewardBreakdown:
        """Return the reward terms from the verifier."""
        return _at_once(self._score())


class AsyncToolEnvironment(_Episode):
    """An episode in which a tool, the user or the verifier is asynchronous."""

    async def step(self, action: Action) -> Step:
        """Execute the calls of one message, or take it as the final answer."""
        return await self._step(action)

    async def score(self) -> RewardBreakdown:
        """Return the reward terms from the verifier, awaiting it if needed."""
        return await self._score()


def _at_once(work: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never waits to its end, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise AssertionError("what is asynchronous needs AsyncToolEnvironment")
