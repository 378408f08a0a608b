"""Episodes in which the policy calls tools and then answers, for any family."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
from espalier.records.trajectory import FinishReason, RewardBreakdown, ToolResult

TurnResults = Sequence[Sequence[ToolResult]]
"""What was called: one sequence of results for each message of the policy that called a tool."""
Verify = Callable[[Task, str | None, TurnResults], float | Awaitable[float]]
"""Task, answer (None where there is none) and results -> outcome, in the family's own range."""
Terms = Callable[[Task, str | None, TurnResults], Mapping[str, float]]
"""Arguments of `Verify` -> further named terms of the reward."""
Reply = Callable[[str], str | Awaitable[str | None] | None]
"""What the policy says to a user -> what the user says then; None where the user has gone."""


def _nothing() -> None:
    """Default of `on_end`: nothing to release."""


def _never() -> bool:
    """Default of `is_over`: calls end an episode by their names alone."""
    return False


def _as_it_is(text: str) -> str:
    return text


def _no_terms(_task: Task, _answer: str | None, _turns: TurnResults) -> Mapping[str, float]:
    """Default of `further_terms`: the outcome and the format are all that is paid."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Tools, verifier and limits that the episodes of a family share."""

    tools: Sequence[Tool]
    verify: Verify
    max_turns: int
    """Messages that call tools or speak to the user; the last of them ends the episode."""
    max_turn_calls: int
    """Calls of one message that are made; any further one is refused, as an observation."""
    reward: RewardConfig
    outcome_span: tuple[float, float] = (0.0, 1.0)
    """Least and most that `verify` returns."""
    outcome_scale: float = 1.0
    """What an outcome is multiplied by, beside `reward.outcome`."""
    read_answer: Callable[[str], str] = _as_it_is
    """Extracts the answer from a final message."""
    ending_tools: frozenset[str] = frozenset()
    """Names of tools whose first successful call ends the episode; its result is the answer."""
    calls_are_answer: bool = False
    """Whether the first message ends the episode: calls are recorded and not made, and the answer
    is what `written_calls` makes of them. A message without a call is an answer as well."""
    reply: Reply | None = None
    """A user who answers what the policy says; it is a final answer where the user has gone."""
    is_over: Callable[[], bool] = field(default=_never)
    """Whether the world behind the tools ended the episode with the last call, whose result is the
    answer then."""
    further_terms: Terms = field(default=_no_terms)
    """Terms of the reward beside the outcome, in its unit; none may be called like another."""
    on_end: Callable[[], None] = field(default=_nothing)
    """Called once, when the episode is over."""

    def environment(self) -> Environment:
        """A fresh environment; asynchronous if a tool or the verifier is."""
        waits = any(tool.is_async for tool in self.tools) or _waits(self.verify)
        waits = waits or (self.reply is not None and _waits(self.reply))
        return AsyncToolEnvironment(self) if waits else ToolEnvironment(self)


def written_calls(calls: Sequence[ToolCall]) -> str:
    """Calls as the answer that they are: a JSON array of `{"name": ..., "arguments": ...}`."""
    return json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls])


def _waits(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(getattr(function, "func", function))


class _Episode:
    """State and rules shared by synchronous and asynchronous episodes."""

    def __init__(self, rules: EpisodeRules) -> None:
        self._rules = rules
        self._tools = {tool.spec.name: tool for tool in rules.tools}
        self._turns: list[list[ToolResult]] = []
        self._answered_messages = 0
        """Messages of the policy that a tool or the user answered."""
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
        if results and self._ends(results[-1]):
            return self._answered(results[-1].content)
        return self._going_on(
            Message(role="tool", content=result.content, call_id=result.call.call_id)
            for result in results
        )

    def _ends(self, result: ToolResult) -> bool:
        """Whether nothing is called after this call."""
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

    def _replied(self, text: str, said: str | None) -> Step:
        """What the user said to `text`."""
        if said is None:
            return self._answered(text)
        return self._going_on([Message(role="user", content=said)])

    def _going_on(self, messages: Iterable[Message]) -> Step:
        self._answered_messages += 1
        if self._answered_messages >= self._rules.max_turns:
            return self._finish(FinishReason.MAX_TURNS)
        return Step(tuple(messages))

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
        """`outcome`, as the profile scales it, `format`: it ended with an answer, and others.

        Raises:
            DataError: the verifier said something outside its range, or nothing: never a 0.
        """
        low, high = self._rules.outcome_span
        if not low <= outcome <= high:  # nor is a NaN inside
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
            case ToolCalls(calls) if self._rules.calls_are_answer:
                return self._answered_by_calls(calls)
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
                    if self._ends(result):
                        break
                return self._called(results)
            case FinalAnswer(text) if self._rules.reply is not None and text.strip():
                said = self._rules.reply(text)
                assert said is None or isinstance(said, str), (
                    "an asynchronous user needs AsyncToolEnvironment"
                )
                return self._replied(text, said)
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
            case ToolCalls(calls) if self._rules.calls_are_answer:
                return self._answered_by_calls(calls)
            case ToolCalls(calls):
                results: list[ToolResult] = []
                for place, call in enumerate(calls):
                    try:
                        results.append(await waited(self._call(place, call)))
                    except ProgramBrokeSandboxError as error:
                        return self._broke(call, results, error)
                    if self._ends(results[-1]):
                        break
                return self._called(results)
            case FinalAnswer(text) if self._rules.reply is not None and text.strip():
                return self._replied(text, await waited(self._rules.reply(text)))
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
