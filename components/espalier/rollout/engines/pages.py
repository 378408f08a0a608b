"""Which page of the cache holds which tokens of which slot: numbers only, no tensors.

A slot's context lies in pages of `PAGE` tokens, in any order, so that rows of different lengths
waste at most one part-filled page each, and a row that ends leaves no gap but whole pages that the
next row takes. Slots whose contexts began as one have the full pages of that beginning in common:
they are never written again.

32 is chosen by measurement (256 rows of 40-140 tokens, 4 heads of 32, one core: 1.3 ms a layer and
step against 1.7 at 16, 1.3 at 64, and 4.1 for one rectangle of the longest).

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
"""Free pages below the last used one that are worth a compaction: attention reads them all."""


class PageCopies(NamedTuple):
    """Pages whose content has to be copied, pairwise."""

    sources: Ints
    targets: Ints


class PageTable:
    """Hands pages out to slots; both grow as they are asked for."""

    def __init__(self) -> None:
        self.lengths_S: Ints = np.zeros(0, np.int64)
        self.pages_SO: Ints = np.zeros((0, 1), np.int64)
        self.owners_P: Ints = np.zeros(0, np.int64)
        """The slot of each page; what a free page says means nothing."""
        self.ordinals_P: Ints = np.zeros(0, np.int64)
        """The place of each page among its slot's."""
        self.common_S: Ints = np.zeros(0, np.int64)
        """How many of a slot's pages, its first ones, it has in common with others."""
        self.families_S: Ints = np.zeros(0, np.int64)
        """Slots with the same number have the same common pages; 0 where there are none."""
        self._members: dict[int, list[int]] = {}
        self._last_family = 0
        self.extent = 0
        """Pages in use lie below this number."""
        self._holes: list[int] = []

    @property
    def live(self) -> int:
        """Pages in use."""
        return self.extent - len(self._holes)

    def extend(self, slots_R: Ints, counts_R: Ints) -> None:
        """Make room for `counts_R` more tokens in each slot, and count them as held."""
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
            The last page, if it is not full: the only one that each needs for itself, unless
            `source` itself was forked when it was shorter.
        """
        slots_R = np.array(targets, np.int64)
        self._fit_slots(int(slots_R.max()) + 1)
        length = int(self.lengths_S[source])
        if not self.families_S[source] and length >= PAGE:
            self._last_family += 1
            self._join(self._last_family, [source], length // PAGE)
        common = int(self.common_S[source])
        if common:
            self._join(int(self.families_S[source]), targets, common)
            self.pages_SO[slots_R, :common] = self.pages_SO[source, :common]
        self.lengths_S[slots_R] = common * PAGE
        self.extend(slots_R, np.full(len(targets), length - common * PAGE, np.int64))
        own = slice(common, int(pages_for(length)))
        originals = np.tile(self.pages_SO[source, own], len(targets))
        return PageCopies(originals, self.pages_SO[slots_R, own].reshape(-1))

    def release(self, slot: int) -> None:
        """Take the pages of `slot` back, those that it had in common with the last who had them."""
        if slot >= len(self.lengths_S):
            return
        common, held = int(self.common_S[slot]), int(pages_for(int(self.lengths_S[slot])))
        self._holes.extend(self.pages_SO[slot, common:held].tolist())
        if common:
            self._leave(slot, self.pages_SO[slot, :common])
        self.lengths_S[slot] = self.common_S[slot] = self.families_S[slot] = 0

    def compact(self) -> PageCopies | None:
        """Move the last pages into the holes, where there are many; None where nothing moves."""
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
            members = self._members[int(self.families_S[owner])]
            self.pages_SO[members, ordinal] = target

    def _join(self, family: int, slots: Sequence[int], common: int) -> None:
        self._members.setdefault(family, []).extend(slots)
        self.families_S[slots] = family
        self.common_S[slots] = common

    def _leave(self, slot: int, pages: Ints) -> None:
        family = int(self.families_S[slot])
        members = self._members[family]
        members.remove(slot)
        if members:
            self.owners_P[pages] = members[0]
        else:
            del self._members[family]
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
            self.families_S = _enlarged(self.families_S, 2 * slots)
            self.pages_SO = _enlarged(self.pages_SO, 2 * slots)

    def _fit_ordinals(self, ordinals: int) -> None:
        if ordinals > self.pages_SO.shape[1]:
            wider = np.zeros((len(self.pages_SO), 2 * ordinals), np.int64)
            wider[:, : self.pages_SO.shape[1]] = self.pages_SO
            self.pages_SO = wider


def pages_for(tokens: Ints | int) -> Ints:
    """Pages that hold so many tokens."""
    return np.asarray((np.asarray(tokens) + PAGE - 1) // PAGE, np.int64)


def _enlarged(array: Ints, rows: int) -> Ints:
    larger = np.zeros((rows, *array.shape[1:]), np.int64)
    larger[: len(array)] = array
    return larger
