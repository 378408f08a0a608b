"""The page table of the cache: which page holds which tokens of which slot; no tensors.

A slot's context is held in pages of `PAGE` tokens, in any order. So rows of different lengths waste
at most one partly filled page each, and a row that ends frees whole pages for the next one. Slots
forked from one context share the full pages of their common prefix, which are never written again.

A page of 32 tokens was chosen by measurement (256 rows of 40-140 tokens, 4 heads of 32, one core:
1.3 ms per layer and step against 1.7 at 16, 1.3 at 64, and 4.1 for one rectangle of the longest).

Axes: S slots, P pages, O a slot's pages in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

PAGE = 32

Ints: TypeAlias = NDArray[np.int64]

_HOLES_PER_PAGE = 1 / 8
"""Share of free pages below `extent` that triggers a compaction: attention reads free pages too."""


class PageCopies(NamedTuple):
    """Pairs of pages: the content of one is copied to the other."""

    sources: Ints
    targets: Ints


class PageTable:
    """Assigns pages to slots; grows as needed."""

    def __init__(self) -> None:
        self.lengths_S: Ints = np.zeros(0, np.int64)
        self.pages_SO: Ints = np.zeros((0, 1), np.int64)
        self.owners_P: Ints = np.zeros(0, np.int64)
        """The slot of each page; meaningless for free pages."""
        self.ordinals_P: Ints = np.zeros(0, np.int64)
        """Index of each page among its slot's pages."""
        self.common_S: Ints = np.zeros(0, np.int64)
        """Number of a slot's first pages that it shares with other slots."""
        self.prefix_ids_S: Ints = np.zeros(0, np.int64)
        """Id of the shared prefix of a slot; 0 if it shares none."""
        self._members: dict[int, list[int]] = {}
        self._last_prefix_id = 0
        self.extent = 0
        """One more than the highest number of a page in use."""
        self._holes: list[int] = []

    @property
    def live(self) -> int:
        """Pages in use."""
        return self.extent - len(self._holes)

    def extend(self, slots_R: Ints, counts_R: Ints) -> None:
        """Assign pages for `counts_R` more tokens in each slot, and count them as held."""
        self._fit_slots(int(slots_R.max()) + 1)
        before_R = pages_for(self.lengths_S[slots_R])
        self.lengths_S[slots_R] += counts_R
        after_R = pages_for(self.lengths_S[slots_R])
        self._fit_ordinals(int(after_R.max()))
        grown = np.nonzero(after_R > before_R)[0]
        for row in grown.tolist():
            slot = int(slots_R[row])
            for ordinal in range(int(before_R[row]), int(after_R[row])):
                self._assign(slot, ordinal)

    def fork(self, source: int, targets: Sequence[int]) -> PageCopies:
        """Give every empty slot of `targets` the context of `source`.

        Returns:
            The page copies to make: of the last page, if it is not full, which every slot needs for
            itself (and of full pages that `source` added since its last fork).
        """
        slots_R = np.array(targets, np.int64)
        self._fit_slots(int(slots_R.max()) + 1)
        length = int(self.lengths_S[source])
        if not self.prefix_ids_S[source] and length >= PAGE:
            self._last_prefix_id += 1
            self._join(self._last_prefix_id, [source], length // PAGE)
        common = int(self.common_S[source])
        if common:
            self._join(int(self.prefix_ids_S[source]), targets, common)
            self.pages_SO[slots_R, :common] = self.pages_SO[source, :common]
        self.lengths_S[slots_R] = common * PAGE
        self.extend(slots_R, np.full(len(targets), length - common * PAGE, np.int64))
        own = slice(common, int(pages_for(length)))
        originals = np.tile(self.pages_SO[source, own], len(targets))
        return PageCopies(originals, self.pages_SO[slots_R, own].reshape(-1))

    def release(self, slot: int) -> None:
        """Free the pages of `slot`; shared pages are freed with the last slot that shares them."""
        if slot >= len(self.lengths_S):
            return
        common, held = int(self.common_S[slot]), int(pages_for(int(self.lengths_S[slot])))
        self._holes.extend(self.pages_SO[slot, common:held].tolist())
        if common:
            self._leave(slot, self.pages_SO[slot, :common])
        self.lengths_S[slot] = self.common_S[slot] = self.prefix_ids_S[slot] = 0

    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        """Take back the last `counts_R` tokens of each slot, from pages of its own."""
        held_R = pages_for(self.lengths_S[slots_R])
        self.lengths_S[slots_R] -= counts_R
        kept_R = pages_for(self.lengths_S[slots_R])
        for row in np.nonzero(kept_R < held_R)[0].tolist():
            freed = self.pages_SO[slots_R[row], kept_R[row] : held_R[row]]
            self._holes.extend(freed.tolist())

    def compact(self) -> PageCopies | None:
        """Move the last pages into free ones if there are many; return None if nothing moves."""
        if len(self._holes) <= self.extent * _HOLES_PER_PAGE:
            return None
        live = self.live
        is_free = np.zeros(self.extent, bool)
        is_free[self._holes] = True
        targets = np.nonzero(is_free[:live])[0]
        sources = live + np.nonzero(~is_free[live:])[0]
        self.owners_P[targets] = self.owners_P[sources]
        self.ordinals_P[targets] = self.ordinals_P[sources]
        self._renumber(sources, targets)
        self._holes.clear()
        self.extent = live
        return PageCopies(sources, targets)

    def _renumber(self, sources: Ints, targets: Ints) -> None:
        owners, ordinals = self.owners_P[targets], self.ordinals_P[targets]
        is_common = ordinals < self.common_S[owners]
        own = ~is_common
        self.pages_SO[owners[own], ordinals[own]] = targets[own]
        moved = zip(owners[is_common], ordinals[is_common], targets[is_common], strict=True)
        for owner, ordinal, target in moved:
            members = self._members[int(self.prefix_ids_S[owner])]
            self.pages_SO[members, ordinal] = target

    def _join(self, prefix_id: int, slots: Sequence[int], common: int) -> None:
        self._members.setdefault(prefix_id, []).extend(slots)
        self.prefix_ids_S[slots] = prefix_id
        self.common_S[slots] = common

    def _leave(self, slot: int, pages: Ints) -> None:
        prefix_id = int(self.prefix_ids_S[slot])
        members = self._members[prefix_id]
        members.remove(slot)
        if members:
            self.owners_P[pages] = members[0]
        else:
            del self._members[prefix_id]
            self._holes.extend(pages.tolist())

    def _assign(self, slot: int, ordinal: int) -> None:
        if self._holes:
            page = self._holes.pop()
        else:
            page = self.extent
            self.extent += 1
            if page >= len(self.owners_P):
                self.owners_P = _enlarged(self.owners_P, 2 * page + 64)
                self.ordinals_P = _enlarged(self.ordinals_P, 2 * page + 64)
        self.owners_P[page] = slot
        self.ordinals_P[page] = ordinal
        self.pages_SO[slot, ordinal] = page

    def _fit_slots(self, slots: int) -> None:
        if slots > len(self.lengths_S):
            self.lengths_S = _enlarged(self.lengths_S, 2 * slots)
            self.common_S = _enlarged(self.common_S, 2 * slots)
            self.prefix_ids_S = _enlarged(self.prefix_ids_S, 2 * slots)
            self.pages_SO = _enlarged(self.pages_SO, 2 * slots)

    def _fit_ordinals(self, ordinals: int) -> None:
        if ordinals > self.pages_SO.shape[1]:
            wider = np.zeros((len(self.pages_SO), 2 * ordinals), np.int64)
            wider[:, : self.pages_SO.shape[1]] = self.pages_SO
            self.pages_SO = wider


def pages_for(tokens: Ints | int) -> Ints:
    """Return the number of pages that hold `tokens` tokens."""
    return np.asarray((np.asarray(tokens) + PAGE - 1) // PAGE, np.int64)


def last_places(counts_R: Ints, lasts_R: Ints) -> Ints:
    """Return the indices of each row's last `lasts_R` tokens; rows have `counts_R` tokens."""
    starts_R = np.cumsum(counts_R) - lasts_R
    before_R = np.cumsum(lasts_R) - lasts_R
    return np.repeat(starts_R - before_R, lasts_R) + np.arange(int(lasts_R.sum()))


def _enlarged(array: Ints, rows: int) -> Ints:
    larger = np.zeros((rows, *array.shape[1:]), np.int64)
    larger[: len(array)] = array
    return larger
