"""The calls of one attempt, joined where one continues another, and the trajectory that they are.

A call whose prompt begins with the prompt and answer of an earlier one continues it; the longest
such call is its parent. A retry, a sub-agent or a compacted history continues something shorter, or
nothing, and so is a branch or a root:

    call 0   P A0                    parent -      window 0   P A0 O A1
    call 1   P A0 O A1               parent 0
    call 2   P A0 O A2   (a retry)   parent 0      window 1   P K0 O A2
    call 3   Q A3        (another)   parent -      window 2   Q A3

Each path to a call that nothing continues is a window of the trajectory. A sampled answer (A) is
trained in the first window that it stands in; in others it is read (K), so that no sampled token
is trained twice and none is left out.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    """Token ids as bytes, so that whether one list begins with another is one comparison."""
    return array("i", token_ids).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call: what the policy read, and what was sampled."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """Includes the stop token, where one ended it."""
    logprobs: tuple[float, ...]
    """Nats, one for each of `answer_ids`."""
    stopped: bool
    """Whether the stop rule ended the answer; False where it was cut off."""
    is_action: bool
    """Whether the answer is one in the policy's dialect, or calls that are; other text is not."""
    policy_version: int
    asked: tuple[Message, ...]
    """The messages of the request."""
    said: Message
    """The answer, as it was sent: calls have the ids that the agent was told."""

    @property
    def said_something(self) -> bool:
        """Whether the answer has calls or text."""
        return bool(self.said.tool_calls or self.said.content)


class Fingerprint(NamedTuple):
    """What of an answer an agent must send back unchanged: its text, or its calls with ids."""

    text: str
    calls: tuple[tuple[str, str, str], ...]
    """Id, name and arguments of each."""


def fingerprint(message: Message) -> Fingerprint:
    """The fingerprint of a message; what was said beside calls, most agents drop."""
    calls = tuple(
        (call.call_id, call.name, _SORTED_JSON.encode(call.arguments))
        for call in message.tool_calls
    )
    return Fingerprint("" if calls else message.content.strip(), calls)


class _Node(NamedTuple):
    call: RecordedCall
    prompt: bytes
    whole: bytes
    """Prompt and answer."""
    parent: int | None


class PrefixGraph:
    """Calls in the order in which they were answered."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._said: dict[Fingerprint, list[_Node]] = {}
        """Calls by what was answered, oldest first."""
        self._call_ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls."""
        return [node.call for node in self._nodes]

    def add(self, call: RecordedCall, prompt: bytes) -> None:
        """Record a call.

        Args:
            call: was answered.
            prompt: `id_bytes` of its prompt.
        """
        whole = prompt + id_bytes(call.answer_ids)
        node = _Node(call, prompt, whole, self._continued(prompt))
        self._nodes.append(node)
        self._said.setdefault(fingerprint(call.said), []).append(node)
        self._call_ids.update(made.call_id for made in call.said.tool_calls)

    def has_call_id(self, call_id: str) -> bool:
        """Whether a call of a tool has this id."""
        return call_id in self._call_ids

    def parents(self) -> list[int | None]:
        """Number of the call that each continues; None for a root."""
        return [node.parent for node in self._nodes]

    def answers_to(self, prompt: bytes) -> list[RecordedCall]:
        """The calls with exactly this prompt (`id_bytes`), newest first."""
        return [node.call for node in reversed(self._nodes) if node.prompt == prompt]

    def answer_of(self, message: Message, prompt: bytes) -> RecordedCall | None:
        """The call whose answer a message is; of several the newest that has exactly this prompt.

        One with another prompt is found where none has this, unless it answered nothing.
        """
        same = [
            node
            for node in reversed(self._said.get(fingerprint(message), ()))
            if _is_thought_kept(message, node.call.said)
        ]
        here = (node.call for node in same if node.prompt == prompt)
        elsewhere = (node.call for node in same if node.call.said_something)
        return next(here, None) or next(elsewhere, None)

    def _continued(self, prompt: bytes) -> int | None:
        """The longest call that a prompt goes on from; of several the oldest."""
        longest: int | None = None
        length = 0
        for number in range(len(self._nodes) - 1, -1, -1):
            whole = self._nodes[number].whole
            if len(whole) >= length and prompt.startswith(whole):
                longest, length = number, len(whole)
        return longest

    def paths(self) -> list[list[int]]:
        """For each window the calls on its path, from the root; those not trained before are last.

        Windows stand in the order of the first call that is trained in them.
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
    """What an attempt came to, beside its calls."""

    reward: RewardBreakdown
    """Empty where it was lost."""
    answer: str | None
    finish_reason: FinishReason


def trajectory_of(
    graph: PrefixGraph, outcome: AttemptOutcome, *, task_id: str, group_id: str
) -> Trajectory:
    """The trajectory of an attempt: one window for each path through its calls.

    Its policy version is the oldest that answered one of the calls: importance ratios are taken
    from the recorded log-probs, and staleness must not be told smaller than it is.
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


def _is_thought_kept(message: Message, said: Message) -> bool:
    return message.thought is None or message.thought.strip() == (said.thought or "").strip()


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
        """Whether what is read next is what the last turn provoked."""

    def begin(self) -> None:
        """Begin a window."""
        self._start = len(self.token_ids)
        self.window_starts.append(self._start)
        self._above = None
        self._observes = False

    def append(self, number: int, call: RecordedCall) -> None:
        """Continue the window with a call: what it read beyond the window, and its answer."""
        in_window = len(self.token_ids) - self._start
        self._read(call.prompt_ids[in_window:])
        above, self._above = self._above, call
        if number in self._trained:
            self._observes = False
            self._read(call.answer_ids)
            return
        self._tell(call, above)
        self._trained.add(number)
        start, end = len(self.token_ids), len(self.token_ids) + len(call.answer_ids)
        self.token_ids += call.answer_ids
        self.action_mask += [1] * len(call.answer_ids)
        self.logprobs += call.logprobs
        self.turns.append(Turn(action_start=start, action_end=end, observation_end=end))
        self._observes = True

    def _tell(self, call: RecordedCall, above: RecordedCall | None) -> None:
        """Add the messages of a turn: what is new in its request, and its answer.

        Messages of the assistant that stand in a later request are no turns: those that the policy
        wrote were told before, and examples may only stand before the first turn.
        """
        new = call.asked[0 if above is None else len(above.asked) + 1 :]
        self.messages += [m for m in new if m.role != "assistant" or not self.said]
        self.messages.append(call.said)
        self.said.append(call.said)

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
    """What came of each call, as a later request has it; nothing where none has.

    Whether a tool of the agent's failed is not known.
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
