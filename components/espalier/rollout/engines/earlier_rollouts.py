"""Drafts of a session's next tokens, from earlier sessions with the same prompt.

The contexts of ended sessions are kept whole, by prompt: prompt, actions, observations. A session
follows one of them by a pointer, as long as its own tokens are the same; its draft is the rest of
the action that the pointer is in. Where the session differs from that context, its last tokens are
looked up in all contexts of the prompt.

Tokens are kept as bytes, four each, so that comparing or searching many of them is one call.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_WIDTH = array("i").itemsize
_PER_PROMPT = 4
"""Number of contexts kept per prompt; the newest."""
_MAX_TOKENS = 1 << 20
"""Tokens kept in all, 4 MiB; the prompts that were unused for longest are dropped first."""
_LOOKED_UP = 6
"""Number of last tokens that are looked up where a session leaves the context that it followed:
about half an action."""


@dataclass(frozen=True, slots=True)
class EarlierContext:
    """The tokens of an ended session."""

    token_bytes: bytes
    starts: tuple[int, ...]
    """Token positions where its actions start."""
    ends: tuple[int, ...]
    """Token positions where its actions end, after their last token."""

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.token_bytes) // _WIDTH

    def goes_on_with(self, place: int, token_bytes: bytes) -> bool:
        """Whether the tokens from `place` on are `token_bytes`."""
        return self.token_bytes.startswith(token_bytes, place * _WIDTH)

    def action_from(self, place: int) -> array[int]:
        """Return the tokens from `place` to the end of its action; empty within an observation."""
        action = bisect_right(self.starts, place) - 1
        found = array("i")
        if action >= 0 and place < self.ends[action]:
            found.frombytes(self.token_bytes[place * _WIDTH : self.ends[action] * _WIDTH])
        return found

    def place_after(self, token_bytes: bytes) -> int | None:
        """Return the first position after `token_bytes`; None if they do not occur."""
        at = self.token_bytes.find(token_bytes)
        while (
            at % _WIDTH and at >= 0
        ):  # a match that begins in the middle of a token's four bytes is none
            at = self.token_bytes.find(token_bytes, at + 1)
        return None if at < 0 else (at + len(token_bytes)) // _WIDTH


class EarlierRollouts:
    """Contexts of ended sessions by their prompts."""

    def __init__(self) -> None:
        self._contexts: OrderedDict[int, deque[EarlierContext]] = OrderedDict()
        """Contexts by the hash of a prompt: a collision would make drafts worse, but not wrong."""
        self._num_tokens = 0

    def of(self, prompt: bytes) -> Sequence[EarlierContext]:
        """Return the contexts that begin with `prompt`, the newest first."""
        return self._contexts.get(hash(prompt), ())

    def add(self, prompt: bytes, context: EarlierContext) -> None:
        """Keep a context; drop one that equals it, and the oldest beyond the bounds."""
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
    """The context of an open session, and the earlier context that it follows."""

    prompt: bytes
    earlier: Sequence[EarlierContext]
    tokens: bytearray
    followed: EarlierContext | None
    """The earlier context; None if none contains this session's last tokens."""
    place: int
    """Position in the followed context up to which the session has come."""
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
        """Return the likely next tokens of an action whose sampled tokens are `action_ids`."""
        begun = as_bytes(action_ids)
        if self.followed is not None and self.followed.goes_on_with(self.place, begun):
            found = self.followed.action_from(self.place + len(action_ids))
            if found:
                return found
        return self._look_up(begun)

    def ended(self) -> EarlierContext:
        """Return the context that later sessions may follow."""
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
    """Return tokens as the bytes in which they are kept."""
    return array("i", token_ids).tobytes()
