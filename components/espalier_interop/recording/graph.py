"""The calls of one attempt, linked where one continues another, and the trajectory they make.

A call whose prompt begins with the prompt and answer of an earlier one continues it; the longest
such call is its parent. A retry, a sub-agent or a compacted history continues something shorter, or
nothing, and so is a branch or a root:

    call 0   P A0                    parent -      window 0   P A0 O A1
    call 1   P A0 O A1               parent 0
    call 2   P A0 O A2   (a retry)   parent 0      window 1   P K0 O A2
    call 3   Q A3        (another)   parent -      window 2   Q A3

Each path to a call without a successor is a window of the trajectory. A sampled answer (A) is
trained in the first window that contains it; in others it is only read (K), so that every sampled
token is trained exactly once.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from espalier.records import Message
from espalier.records.trajectory import (
    FinishReason,
    RewardBreakdown,
    ToolResult,
    Trajectory,
    Turn,
)

_ID_BYTES = array("i").itemsize
_SORTED_JSON = json.JSONEncoder(sort_keys=True)


def id_bytes(token_ids: Sequence[int]) -> bytes:
    """Return token ids as bytes, so that testing for a common beginning is one comparison."""
    return array("i", token_ids).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call: the tokens that the policy read, and those that were sampled."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """Includes the stop token, if one ended the answer."""
    logprobs: tuple[float, ...]
    """Nats, one for each of `answer_ids`."""
    stopped: bool
    """Whether the stop rule ended the answer; False if it was cut off."""
    is_action: bool
    """Whether the answer is an action, or calls, in the policy's dialect; other text is not."""
    policy_version: int
    asked: tuple[Message, ...]
    """The messages of the request."""
    said: Message
    """The answer as it was sent, with the call ids that the agent received."""

    @property
    def said_something(self) -> bool:
        """Whether the answer has calls or text."""
        return bool(self.said.tool_calls or self.said.content)


class Fingerprint(NamedTuple):
    """What an agent must send back unchanged of an answer: its text, or its calls with ids."""

    text: str
    calls: tuple[tuple[str, str, str], ...]
    """Id, name and arguments of each."""


def fingerprint(message: Message) -> Fingerprint:
    """Return a message's fingerprint; without text beside calls, which most agents drop.

    Numbers are those that JavaScript reads: such an agent sends 1.0 back as 1, and 2 ** 53 + 1 as
    2 ** 53.
    """
    calls = tuple(
        (call.call_id, call.name, _SORTED_JSON.encode(_with_doubles(call.arguments)))
        for call in message.tool_calls
    )
    return Fingerprint("" if calls else message.content.strip(), calls)


def _with_doubles(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: _with_doubles(one) for key, one in value.items()}
        case list():
            return [_with_doubles(one) for one in value]
        case int() | float() if not isinstance(value, bool):
            try:
                return float(value) + 0.0  # -0.0 is written as 0
            except OverflowError:
                return None  # what JavaScript writes for an infinite number
        case _:
            return value


class _Node(NamedTuple):
    call: RecordedCall
    prompt: bytes
    whole: bytes
    """The prompt and the answer."""
    parent: int | None


class PrefixGraph:
    """Calls in the order in which they were answered."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._said: dict[Fingerprint, list[_Node]] = {}
        """Calls by the fingerprint of their answer, oldest first."""
        self._call_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def calls(self) -> list[RecordedCall]:
        """Return all calls."""
        return [node.call for node in self._nodes]

    def add(self, call: RecordedCall, prompt: bytes) -> None:
        """Record a call.

        Args:
            call: the answered call.
            prompt: `id_bytes` of its prompt.
        """
        whole = prompt + id_bytes(call.answer_ids)
        node = _Node(call, prompt, whole, self._continued(prompt))
        self._nodes.append(node)
        self._said.setdefault(fingerprint(call.said), []).append(node)
        self._call_ids.update(made.call_id for made in call.said.tool_calls)

    def has_call_id(self, call_id: str) -> bool:
        """Return whether a tool call has this id."""
        return call_id in self._call_ids

    def parents(self) -> list[int | None]:
        """Return for each call the number of the call that it continues; None for a root."""
        return [node.parent for node in self._nodes]

    def answers_to(self, prompt: bytes) -> list[RecordedCall]:
        """Return the calls with exactly this prompt (`id_bytes`), newest first."""
        return [node.call for node in reversed(self._nodes) if node.prompt == prompt]

    def answer_of(self, message: Message, prompt: bytes) -> RecordedCall | None:
        """Return the call whose answer a message is; the newest with exactly this prompt.

        Where none has this prompt, one with another prompt is returned, unless the message is
        empty.
        """
        thought = message.thought
        same = [
            node
            for node in reversed(self._said.get(fingerprint(message), ()))
            if thought is None or thought.strip() == (node.call.said.thought or "").strip()
        ]
        here = (node.call for node in same if node.prompt == prompt)
        elsewhere = (node.call for node in same if node.call.said_something)
        return next(here, None) or next(elsewhere, None)

    def _continued(self, prompt: bytes) -> int | None:
        """Return the longest call that a prompt continues; the oldest of several."""
        longest: int | None = None
        length = 0
        for number in range(len(self._nodes) - 1, -1, -1):
            whole = self._nodes[number].whole
            if len(whole) >= length and prompt.startswith(whole):
                longest, length = number, len(whole)
        return longest

    def paths(self) -> list[list[int]]:
        """Return for each window the calls on its path from the root; untrained calls come last.

        Windows are in the order of the first call that is trained in them.
        """
        parents = self.parents()
        leaves = set(range(len(parents))).difference(p for p in parents if p is not None)
        paths = [self._path(leaf, parents) for leaf in sorted(leaves)]
        trained: set[int] = set()
        ordered: list[tuple[int, list[int]]] = []
        for path in paths:
            fresh = [number for number in path if number not in trained]
            trained.update(fresh)
            ordered.append((fresh[0], path))
        return [path for _, path in sorted(ordered)]

    @staticmethod
    def _path(leaf: int, parents: Sequence[int | None]) -> list[int]:
        path: list[int] = []
        at: int | None = leaf
        while at is not None:
            path.append(at)
            at = parents[at]
        return path[::-1]


class AttemptOutcome(NamedTuple):
    """The outcome of an attempt, apart from its calls."""

    reward: RewardBreakdown
    """Empty if the attempt was lost."""
    answer: str | None
    finish_reason: FinishReason


def trajectory_of(
    graph: PrefixGraph, outcome: AttemptOutcome, *, task_id: str, group_id: str
) -> Trajectory:
    """Return the trajectory of an attempt: one window for each path through its calls.

    Its policy version is the oldest that answered a call: importance ratios come from the recorded
    log-probs, and the trajectory must not look less stale than its oldest call.
    """
    written = _Windows()
    calls = graph.calls
    for path in graph.paths():
        written.begin()
        for number in path:
            written.append(number, calls[number])
    return Trajectory(
        task_id=task_id,
        group_id=group_id,
        messages=tuple(written.messages),
        tool_results=tuple(_tool_results(written.said, calls)),
        reward=outcome.reward,
        answer=outcome.answer,
        finish_reason=outcome.finish_reason,
        policy_version=min((call.policy_version for call in calls), default=0),
        token_ids=tuple(written.token_ids),
        action_mask=tuple(written.action_mask),
        behavior_logprobs=tuple(written.logprobs),
        turns=tuple(written.turns),
        window_starts=tuple(written.window_starts) or (0,),
    )


class _Windows:
    """Tokens, mask and turns of the windows written so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.said: list[Message] = []
        """The message of each turn."""
        self.token_ids: list[int] = []
        self.action_mask: list[int] = []
        self.logprobs: list[float] = []
        self.turns: list[Turn] = []
        self.window_starts: list[int] = []
        self._trained: set[int] = set()
        self._start = 0
        self._above: RecordedCall | None = None
        """The call before on the window's path."""
        self._observes = False
        """Whether the next tokens that are read answer the last turn."""

    def begin(self) -> None:
        """Begin a window."""
        self._start = len(self.token_ids)
        self.window_starts.append(self._start)
        self._above = None
        self._observes = False

    def append(self, number: int, call: RecordedCall) -> None:
        """Continue the window with a call: the new tokens of its prompt, and its answer."""
        in_window = len(self.token_ids) - self._start
        self._read(call.prompt_ids[in_window:])
        above, self._above = self._above, call
        if number in self._trained:
            self._observes = False
            self._read(call.answer_ids)
            return

        # assistant messages in a later request are no turns: those that the policy wrote were
        # added before, and examples may only stand before the first turn
        new = call.asked[0 if above is None else len(above.asked) + 1 :]
        self.messages += [m for m in new if m.role != "assistant" or not self.said]
        self.messages.append(call.said)
        self.said.append(call.said)

        self._trained.add(number)
        start, end = len(self.token_ids), len(self.token_ids) + len(call.answer_ids)
        self.token_ids += call.answer_ids
        self.action_mask += [1] * len(call.answer_ids)
        self.logprobs += call.logprobs
        self.turns.append(Turn(action_start=start, action_end=end, observation_end=end))
        self._observes = True

    def _read(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids
        self.action_mask += [0] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)
        if self._observes and token_ids:
            last = self.turns[-1]
            self.turns[-1] = Turn(
                action_start=last.action_start,
                action_end=last.action_end,
                observation_end=len(self.token_ids),
            )


def _tool_results(said: Sequence[Message], calls: Sequence[RecordedCall]) -> Iterator[ToolResult]:
    """Yield the result of each call from a later request; nothing where no result was sent.

    Whether a tool of the agent failed is not known.
    """
    read = {
        message.call_id: message.content
        for call in calls
        for message in call.asked
        if message.role == "tool"
    }
    for message in said:
        for call in message.tool_calls:
            yield ToolResult(call=call, content=read.get(call.call_id, ""), succeeded=True)
