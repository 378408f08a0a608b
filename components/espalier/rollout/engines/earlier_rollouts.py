"""Drafts of what a session will sample: what earlier sessions with the same prompt went on with.

The contexts of ended sessions are kept by their prompts, whole: prompt, actions, observations. A
session follows one of them by a pointer, as long as its own tokens are the same; its draft is the
rest of the action that the pointer is in. Where it leaves that context, its last tokens are looked
up among all contexts of the prompt.

Tokens are kept as bytes, four each: to compare or to search many of them is one call.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_WIDTH = array("i").itemsize
_PER_PROMPT = 4
"""Contexts kept of one prompt, the newest."""
_MAX_TOKENS = 1 << 20
"""Tokens kept in all, 4 MiB; the prompts that no session began with for longest go first."""
_LOOKED_UP = 6
"""Last tokens that are looked up where a session left what it followed: about half an action."""


@dataclass(frozen=True, slots=True)
class EarlierContext:
    """The tokens of an ended session."""

    token_bytes: bytes
    starts: tuple[int, ...]
    """Where its actions start, in tokens."""
    ends: tuple[int, ...]
    """Where they end, their last token included."""

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.token_bytes) // _WIDTH

    def goes_on_with(self, place: int, token_bytes: bytes) -> bool:
        """Whether the tokens from `place` on are these."""
        return self.token_bytes.startswith(token_bytes, place * _WIDTH)

    def action_from(self, place: int) -> array[int]:
        """The tokens from `place` to the end of the action it is in; none within an observation."""
        action = bisect_right(self.starts, place) - 1
        found = array("i")
        if action >= 0 and place < self.ends[action]:
            found.frombytes(self.token_bytes[place * _WIDTH : self.ends[action] * _WIDTH])
        return found

    def place_after(self, token_bytes: bytes) -> int | None:
        """The first place behind these tokens; None where they are not part of it."""
        at = self.token_bytes.find(token_bytes)
        while at % _WIDTH and at >= 0:  # found across the border of two tokens
            at = self.token_bytes.find(token_bytes, at + 1)
        return None if at < 0 else (at + len(token_bytes)) // _WIDTH


class EarlierRollouts:
    """Contexts of ended sessions by their prompts."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[int, deque[EarlierContext]] = OrderedDict()
        """By the hash of a prompt: where two had the same, drafts would be worse, and not wrong."""
        self._num_tokens = 0

    def of(self, prompt: bytes) -> Sequence[EarlierContext]:
        """Those that begin with `prompt`, the newest first."""
        return self._contexts.get(hash(prompt), ())

    def add(self, prompt: bytes, context: EarlierContext) -> None:
        """Keep a context; one that equals it goes, and so do the oldest beyond the bounds."""
        contexts = self._contexts.setdefault(hash(prompt), deque())
        self._contexts.move_to_end(hash(prompt))
        if context in contexts:
            contexts.remove(context)
        elif len(contexts) == _PER_PROMPT:
            self._num_tokens += len(context) - len(contexts.pop())
        else:
            self._num_tokens += len(context)
        contexts.appendleft(context)
        while self._num_tokens > _MAX_TOKENS and len(self._contexts) > 1:
            _, oldest = self._contexts.popitem(last=False)
            self._num_tokens -= sum(map(len, oldest))


@dataclass(slots=True)
class FollowedContext:
    """The context of an open session, and the earlier one that it follows."""

    prompt: bytes
    earlier: Sequence[EarlierContext]
    tokens: bytearray
    followed: EarlierContext | None
    """None where its own last tokens are those of no earlier one."""
    place: int
    """How much of the followed one is behind it."""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, prompt_ids: Sequence[int], rollouts: EarlierRollouts) -> FollowedContext:
        """Follow the newest context of the prompt from the beginning."""
        prompt = as_bytes(prompt_ids)
        earlier = tuple(rollouts.of(prompt))
        is_same = bool(earlier) and earlier[0].goes_on_with(0, prompt)
        followed = earlier[0] if is_same else None
        return cls(prompt, earlier, bytearray(prompt), followed, len(prompt_ids))

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append an observation."""
        self._append(as_bytes(token_ids))

    def act(self, token_ids: Sequence[int]) -> None:
        """Append an action."""
        self.starts.append(len(self.tokens) // _WIDTH)
        self._append(as_bytes(token_ids))
        self.ends.append(len(self.tokens) // _WIDTH)

    def draft(self, action_ids: Sequence[int]) -> Sequence[int]:
        """The tokens that are likely to follow in an action of which `action_ids` are sampled."""
        begun = as_bytes(action_ids)
        if self.followed is not None and self.followed.goes_on_with(self.place, begun):
            found = self.followed.action_from(self.place + len(action_ids))
            if found:
                return found
        return self._look_up(begun)

    def ended(self) -> EarlierContext:
        """What it leaves to later sessions."""
        return EarlierContext(bytes(self.tokens), tuple(self.starts), tuple(self.ends))

    def _append(self, token_bytes: bytes) -> None:
        self.tokens += token_bytes
        if self.followed is not None and self.followed.goes_on_with(self.place, token_bytes):
            self.place += len(token_bytes) // _WIDTH
        else:
            self.followed = None

    def _look_up(self, begun: bytes) -> Sequence[int]:
        tail = begun[-_LOOKED_UP * _WIDTH :]
        before = len(self.tokens) - (_LOOKED_UP * _WIDTH - len(tail))
        tail = bytes(self.tokens[max(0, before) :]) + tail
        for earlier in self.earlier:
            place = earlier.place_after(tail)
            if place is not None and (found := earlier.action_from(place)):
                self.followed = earlier
                self.place = place - len(begun) // _WIDTH
                return found
        return ()


def as_bytes(token_ids: Sequence[int]) -> bytes:
    """Tokens as they are kept."""
    return array("i", token_ids).tobytes()
