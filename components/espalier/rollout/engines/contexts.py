"""Contexts that several rows of the lock-step engine share, from the prompt to where they differ.

Attempts at one task begin with the same tokens: the prompt, and often the first messages and tool
results. Rows with equal contexts have one context in the decoder: what they read next is forwarded
once, and each draws from the same logits with its own random numbers. Where they draw different
tokens, the decoder's context is copied. The common beginning of different tasks' prompts, such as
instructions and tool schemas, is forwarded only once as well.

    two rows that run the same search, and then draw different tokens from the same distribution

    context 0   P P P A A O O A          row 0 draws B next, row 1 draws C
    context 0   P P P A A O O A B        row 0
    context 1   P P P A A O O A C        row 1, on a copy

Axes: S slots of rows, C contexts of the decoder, N rows of a step, G groups of rows that read the
same tokens behind the same context, P positions of the step that are drawn at, H hidden size.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.pages import Ints
from espalier.rollout.engines.rows import Prompt, RowState, Slots

_NONE = -1
"""The context of a row that has read nothing."""

_MAX_STEP_TOKENS = 4096
"""Bound on a step's memory: a step takes no further group once it has this many tokens."""

_MAX_DRAFTED_STEP_TOKENS = 1024
"""The same bound for steps with drafts: each of their tokens has logits, too. A step of 1024 tokens
of the tiny policy also stays in a core's cache: 15% less time per token than one of 4096."""


_SHORTEST_PREAMBLE = 32
"""Length, in tokens, from which the common beginning of different tasks' prompts is kept."""


class Ready(NamedTuple):
    """Rows whose context is wholly read, with the hidden states of their last tokens."""

    slots_N: Ints
    hidden_N: Ints
    """Index of the hidden state of a row's last token; those of its draft follow it."""
    hidden_PH: Tensor
    forwarded: int
    """Number of tokens that went through the model for these rows."""


class _Groups(NamedTuple):
    """Rows grouped by what they are to read, sorted by its length in tokens."""

    slots_N: Ints
    groups_N: Ints
    leaders_G: Ints
    """One row of each group, which stands for the others."""


class _Kept(NamedTuple):
    context: int
    hidden_H: Tensor


class _Preamble(NamedTuple):
    """The common beginning of different tasks' prompts, in a context of its own."""

    token_ids: Prompt
    context: int

    def begins(self, prompt: Prompt) -> bool:
        """Whether `prompt` begins with this preamble."""
        length = len(self.token_ids)
        return len(prompt) > length and prompt[:length] == self.token_ids


class SharedContexts:
    """The assignment of rows to contexts of the decoder."""

    def __init__(
        self, decoder: Decoder, slots: Slots, rows: RowState, *, max_rows: int, shares_turns: bool
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._rows = rows
        self._shares_turns = shares_turns
        self._context_S: Ints = np.full(max_rows, _NONE)
        self._holders_C: Ints = np.zeros(2 * max_rows, np.int64)
        """Number of rows that use a context, plus 1 if it is kept."""
        self._next_context = 0
        self._released: list[int] = []
        self._fresh: dict[int, Prompt] = {}
        self._kept: dict[Prompt, _Kept] = {}
        self._preamble: _Preamble | None = None

    def opened(self, slot: int, prompt: Prompt) -> None:
        """Register a row that has read nothing, with `prompt` as its unread tokens."""
        self._fresh[slot] = prompt

    def observed(self, slot: int) -> None:
        """Record that the unread tokens of a row are no longer its prompt alone."""
        self._fresh.pop(slot, None)

    def closed(self, slot: int) -> None:
        """Unregister a row."""
        self._fresh.pop(slot, None)
        context = int(self._context_S[slot])
        self._context_S[slot] = _NONE
        if context != _NONE:
            self._let_go(context)

    def are_alone(self, slots_N: Ints) -> NDArray[np.bool_]:
        """Return [N] bool: whether no other row shares, or may come to share, a row's context."""
        contexts_N = self._context_S[slots_N]
        are_alone_N = (contexts_N != _NONE) & (self._holders_C[contexts_N] == 1)
        if self._fresh:
            prompts = Counter(self._fresh.values())
            for row in np.nonzero(contexts_N == _NONE)[0].tolist():
                prompt = self._fresh.get(int(slots_N[row]))
                are_alone_N[row] = (
                    prompt is not None
                    and prompts[prompt] == 1
                    and prompt not in self._kept
                    and not self._slots.is_wanted(prompt)
                )
        return are_alone_N

    def rewind(self, slots_N: Ints, counts_N: Ints) -> None:
        """Take back the last `counts_N` tokens of rows whose drafts the last step read."""
        self._decoder.rewind(self._context_S[slots_N], counts_N)

    def read(self, active_N: Ints) -> Ready:
        """Forward the unread tokens of the rows, up to the bound of a step.

        Contexts of prompts are kept for sessions that wait for a slot, as long as one waits.
        """
        joined = self._join_kept(active_N)
        if joined:
            active_N = np.setdiff1d(active_N, [slot for slot, _ in joined])
            if not len(active_N):
                hidden_GH = torch.stack([hidden_H for _, hidden_H in joined])
                slots_N = np.array([slot for slot, _ in joined])
                return Ready(slots_N, np.arange(len(joined)), hidden_GH, 0)
        forwarded = self._begin_alike(active_N)
        groups = _within_bound(self._grouped(active_N), self._rows)
        forwarded += int(self._rows.num_unread_S[groups.leaders_G].sum())
        lasts_G = 1 + self._rows.num_drafted_S[groups.leaders_G]
        hidden_G = np.cumsum(lasts_G) - lasts_G
        hidden_PH = self._forward(groups, lasts_G)
        self._rows.mark_read(groups.slots_N)
        self._keep_prompts(groups, hidden_PH, hidden_G)
        if self._kept:
            self._drop_unwanted()
        hidden_N = hidden_G[groups.groups_N]
        if not joined:
            return Ready(groups.slots_N, hidden_N, hidden_PH, forwarded)
        numbers_N = len(hidden_PH) + np.arange(len(joined))
        return Ready(
            np.concatenate((groups.slots_N, [slot for slot, _ in joined])),
            np.concatenate((hidden_N, numbers_N)),
            torch.cat((hidden_PH, torch.stack([hidden_H for _, hidden_H in joined]))),
            forwarded,
        )

    def _join_kept(self, active_N: Ints) -> list[tuple[int, Tensor]]:
        """Give each row whose prompt has a kept context that context.

        Returns:
            Those rows, and the hidden state of the prompt's last token.
        """
        if not (self._fresh and self._kept):
            return []
        joined = []
        for slot in active_N.tolist():
            kept = self._kept.get(self._fresh.get(slot, ()))
            if kept is not None and not self._rows.num_drafted_S[slot]:
                del self._fresh[slot]
                self._context_S[slot] = kept.context
                self._holders_C[kept.context] += 1
                self._rows.mark_read(np.array([slot]))
                joined.append((slot, kept.hidden_H))
        return joined

    def _begin_alike(self, active_N: Ints) -> int:
        """Give rows that have read nothing the context of their prompts' common beginning.

        Returns:
            Number of tokens that went through the model for this.
        """
        fresh = {slot: self._fresh[slot] for slot in active_N.tolist() if slot in self._fresh}
        if self._preamble is None:
            others = set(fresh.values())
        else:
            others = {prompt for prompt in fresh.values() if not self._preamble.begins(prompt)}
        forwarded = self._keep_preamble(_common_beginning(others)) if len(others) > 1 else 0
        if self._preamble is None:
            return forwarded
        token_ids, context = self._preamble
        for slot, prompt in fresh.items():
            if self._context_S[slot] == _NONE and self._preamble.begins(prompt):
                self._context_S[slot] = context
                self._holders_C[context] += 1
                self._rows.skip(slot, len(token_ids))
        return forwarded

    def _keep_preamble(self, token_ids: Prompt) -> int:
        if len(token_ids) < _SHORTEST_PREAMBLE:
            return 0
        if self._preamble is not None:
            self._let_go(self._preamble.context)
        self._preamble = _Preamble(token_ids, self._new_context())
        slot, count = np.array([self._preamble.context]), np.array([len(token_ids)])
        self._holders_C[slot] = 1
        self._decoder.advance(slot, count, np.array(token_ids))
        return len(token_ids)

    def _grouped(self, slots_N: Ints) -> _Groups:
        """Group the rows that have the same context and the same unread tokens."""
        contexts_N = self._context_S[slots_N]
        is_single_N = (self._rows.num_unread_S[slots_N] == 1) & (contexts_N != _NONE)
        singles_N, others_N = slots_N[is_single_N], slots_N[~is_single_N]
        if self._shares_turns:
            keys_N = (self._context_S[singles_N] << 32) + self._rows.last_S[singles_N]
            _, firsts_G, groups_N = np.unique(keys_N, return_index=True, return_inverse=True)
            leaders_G = singles_N[firsts_G]
        else:
            leaders_G, groups_N = singles_N, np.arange(len(singles_N))
        if not len(others_N):
            return _Groups(singles_N, groups_N, leaders_G)
        members: dict[tuple[object, ...], list[int]] = {}
        for slot in others_N.tolist():
            context = int(self._context_S[slot])
            has_read = context != _NONE and slot not in self._fresh
            is_alone = has_read and not self._shares_turns
            key = (slot,) if is_alone else (context, *self._rows.unread_ids(slot))
            members.setdefault((is_alone, *key), []).append(slot)
        in_order = sorted(members.values(), key=lambda slots: self._rows.num_unread_S[slots[0]])
        numbers_N = np.repeat(np.arange(len(in_order)), [len(slots) for slots in in_order])
        return _Groups(
            np.concatenate((singles_N, *in_order)),
            np.concatenate((groups_N, len(leaders_G) + numbers_N)),
            np.concatenate((leaders_G, [slots[0] for slots in in_order])),
        )

    def _forward(self, groups: _Groups, lasts_G: Ints) -> Tensor:
        """Forward each group's tokens in a context that no other row has.

        Returns:
            [P, H], the hidden states of each group's last `lasts_G` tokens.
        """
        sizes_G = np.bincount(groups.groups_N, minlength=len(groups.leaders_G))
        contexts_G = self._context_S[groups.leaders_G]
        parts_G = (contexts_G == _NONE) | (sizes_G < self._holders_C[contexts_G])
        copies: dict[int, list[int]] = {}
        parting = np.nonzero(parts_G)[0]
        # the largest last: it may keep the source context
        for group in parting[np.argsort(sizes_G[parting], kind="stable")].tolist():
            source, size = int(contexts_G[group]), int(sizes_G[group])
            if source != _NONE:
                if self._holders_C[source] == size:
                    continue
                self._holders_C[source] -= size
            context = self._new_context()
            if source != _NONE:
                copies.setdefault(source, []).append(context)
            self._holders_C[context] = size
            self._context_S[groups.slots_N[groups.groups_N == group]] = context
        for source, targets in copies.items():
            self._decoder.fork(source, targets)
        leaders_G = groups.leaders_G
        counts_G = self._rows.num_unread_S[leaders_G]
        token_ids_M = self._rows.read(leaders_G)
        contexts_G = self._context_S[leaders_G]
        if lasts_G.max() == 1:
            return self._decoder.advance(contexts_G, counts_G, token_ids_M)
        return self._decoder.advance(contexts_G, counts_G, token_ids_M, lasts_G)

    def _keep_prompts(self, groups: _Groups, hidden_PH: Tensor, hidden_G: Ints) -> None:
        if not self._fresh:
            return
        prompts = {slot: self._fresh.pop(slot, None) for slot in groups.slots_N.tolist()}
        for group, leader in enumerate(groups.leaders_G.tolist()):
            prompt = prompts[leader]
            if prompt is None or self._rows.num_drafted_S[leader]:
                continue  # followed by a draft
            if self._slots.is_wanted(prompt):
                context = int(self._context_S[leader])
                self._holders_C[context] += 1
                self._kept[prompt] = _Kept(context, hidden_PH[hidden_G[group]])

    def _drop_unwanted(self) -> None:
        wanted = set(self._fresh.values())
        for prompt in [p for p in self._kept if p not in wanted and not self._slots.is_wanted(p)]:
            self._let_go(self._kept.pop(prompt).context)

    def _new_context(self) -> int:
        if self._released:
            return heapq.heappop(self._released)
        context = self._next_context
        self._next_context += 1
        if context >= len(self._holders_C):
            self._holders_C = np.pad(self._holders_C, (0, len(self._holders_C)))
        return context

    def _let_go(self, context: int) -> None:
        self._holders_C[context] -= 1
        if not self._holders_C[context]:
            self._decoder.release(context)
            heapq.heappush(self._released, context)


def _common_beginning(prompts: Collection[Prompt]) -> Prompt:
    """Return the longest common beginning, without the last token of any prompt.

    Each prompt keeps at least one token that remains to be read.
    """
    first, last = min(prompts), max(prompts)
    shortest = min(map(len, prompts)) - 1
    differing = (place for place in range(shortest) if first[place] != last[place])
    return first[: next(differing, shortest)]


def _within_bound(groups: _Groups, rows: RowState) -> _Groups:
    counts_G = rows.num_unread_S[groups.leaders_G]
    if rows.num_drafted_S[groups.leaders_G].any():
        return _longest_within_bound(groups, counts_G)
    fits = int(np.searchsorted(np.cumsum(counts_G) - counts_G, _MAX_STEP_TOKENS))
    if fits == len(counts_G):
        return groups
    is_in_N = groups.groups_N < fits
    return _Groups(groups.slots_N[is_in_N], groups.groups_N[is_in_N], groups.leaders_G[:fits])


def _longest_within_bound(groups: _Groups, counts_G: Ints) -> _Groups:
    """Return all groups of single tokens, and the longest of the other groups.

    Long questions take many turns: if they began last, they would run alone at the end.
    """
    longer_G = np.cumsum(counts_G[::-1])[::-1] - counts_G
    is_in_G = (longer_G < _MAX_DRAFTED_STEP_TOKENS) | (counts_G == 1)
    if is_in_G.all():
        return groups
    is_in_N = is_in_G[groups.groups_N]
    numbers_G = np.cumsum(is_in_G) - 1
    return _Groups(
        groups.slots_N[is_in_N], numbers_G[groups.groups_N[is_in_N]], groups.leaders_G[is_in_G]
    )
