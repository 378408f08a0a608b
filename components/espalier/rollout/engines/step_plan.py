"""Where the tokens of one step go in the paged cache, and what each of them may read.

Axes: R rows, M tokens of the step, P pages, O a row's pages in order, C padded chunk length, T
tokens that can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.rollout.engines.pages import PAGE, Ints, PageTable, pages_for

_SPARSE = 0.5
"""Below this share of pages that a step needs, they are gathered: copying reads them twice."""

_NEVER = float("-inf")
# row n: PAGE biases that let the first n tokens of a page through
_PAGE_BIAS = torch.where(torch.arange(PAGE) < torch.arange(PAGE + 1)[:, None], 0.0, _NEVER)


class OwnPages(NamedTuple):
    """Pages that one row each reads."""

    pages_P: Tensor | None
    """The pages to gather; None where all pages up to the extent take part."""
    extent: int
    owners_P: Tensor
    """Row of each page."""
    bias_P11T: Tensor


class CommonPages(NamedTuple):
    """Pages that several rows read, all full; the rows are padded to the same number."""

    pages_P: Tensor
    readers_PG: Tensor


class SingleRows(NamedTuple):
    """How rows of one token each see their pages, and find the partial results of them."""

    own: OwnPages
    common: CommonPages | None
    partials_RO: Tensor
    """Places among the results of own pages, then those of common ones, reader by reader."""
    bias_RO1: Tensor


class ChunkRows(NamedTuple):
    """How rows of several tokens each see their pages, all padded to one length."""

    tokens_RC: Tensor
    """Token of the step at each padded place."""
    pages_RO: Tensor
    bias_R1CT: Tensor
    places: Tensor
    """Which of the R * C padded places are tokens, in the order of the step."""
    first: int
    """The first token of the class; it ends `len(places)` further on."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Where the tokens of one step are written and what they may read; the same for all layers."""

    positions_M: Tensor
    pages_M: Tensor
    offsets_M: Tensor
    last_R: Tensor
    """The last token of each row."""
    num_single: int
    single: SingleRows | None
    chunks: tuple[ChunkRows, ...]
    pages: int
    """Pages that the pools must have."""
    longest: int
    """Tokens of the longest context that takes part."""


def plan_step(table: PageTable, slots_R: Ints, counts_R: Ints) -> StepPlan:
    """Make room for the step's tokens and say where they go and what they see.

    Args:
        table: is extended by them.
        slots_R: different slots.
        counts_R: tokens of each, in ascending order.
    """
    table.extend(slots_R, counts_R)
    ends_R = table.lengths_S[slots_R]
    rows_M = np.repeat(np.arange(len(slots_R)), counts_R)
    bounds_R = np.cumsum(counts_R)
    positions_M = np.arange(len(rows_M)) + (ends_R - bounds_R)[rows_M]
    num_single = int(np.count_nonzero(counts_R == 1))
    chunks = []
    start = num_single
    while start < len(slots_R):
        stop = _class_end(counts_R, start)
        first = int(bounds_R[start] - counts_R[start])
        chunks.append(_chunk_rows(table, slots_R[start:stop], counts_R[start:stop], first))
        start = stop
    pages_M = table.pages_SO[slots_R[rows_M], positions_M // PAGE]
    return StepPlan(
        positions_M=torch.from_numpy(positions_M),
        pages_M=torch.from_numpy(pages_M),
        offsets_M=torch.from_numpy(positions_M % PAGE),
        last_R=torch.from_numpy(bounds_R - 1),
        num_single=num_single,
        single=_single_rows(table, slots_R[:num_single]) if num_single else None,
        chunks=tuple(chunks),
        pages=table.extent,
        longest=int(ends_R.max()),
    )


def _class_end(counts_R: Ints, start: int) -> int:
    """Neighbouring rows share a class while none is more than twice as long as another."""
    shortest = longest = int(counts_R[start])
    for row in range(start + 1, len(counts_R)):
        shortest, longest = min(shortest, int(counts_R[row])), max(longest, int(counts_R[row]))
        if longest > 2 * shortest:
            return row
    return len(counts_R)


def _single_rows(table: PageTable, slots_R: Ints) -> SingleRows:
    held_R = pages_for(table.lengths_S[slots_R])
    ordinals_O = np.arange(int(held_R.max()))
    is_held_RO = ordinals_O < held_R[:, None]
    is_common_RO = ordinals_O < table.common_S[slots_R][:, None]
    is_own_RO = is_held_RO & ~is_common_RO
    own, partials_RO = _own_pages(table, slots_R, is_own_RO)
    common = None
    if is_common_RO.any():
        common, common_RO = _common_pages(table, slots_R, len(ordinals_O))
        partials_RO = np.where(is_common_RO, len(own.owners_P) + common_RO, partials_RO)
    bias_RO = np.where(is_held_RO, np.float32(0), np.float32(_NEVER))
    return SingleRows(
        own=own,
        common=common,
        partials_RO=torch.from_numpy(np.where(is_held_RO, partials_RO, 0)),
        bias_RO1=torch.from_numpy(bias_RO)[:, :, None],
    )


def _own_pages(table: PageTable, slots_R: Ints, is_own_RO: NDArray[np.bool_]) -> _Own:
    pages_RO = table.pages_SO[slots_R, : is_own_RO.shape[1]]
    if np.count_nonzero(is_own_RO) < _SPARSE * table.extent:
        gathered = torch.from_numpy(pages_RO[is_own_RO])
        owners_P, ordinals_P = np.nonzero(is_own_RO)
        partials_RO = np.cumsum(is_own_RO).reshape(is_own_RO.shape) - 1
    else:
        gathered = None
        rows_S = np.zeros(len(table.lengths_S), np.int64)
        rows_S[slots_R] = np.arange(len(slots_R))
        owners_P = rows_S[table.owners_P[: table.extent]]
        ordinals_P = table.ordinals_P[: table.extent]
        partials_RO = pages_RO
    # a page of a row that sits this step out gets some bias; its partial result is never read
    seen_P = np.clip(table.lengths_S[slots_R][owners_P] - ordinals_P * PAGE, 1, PAGE)
    own = OwnPages(
        pages_P=gathered,
        extent=table.extent,
        owners_P=torch.from_numpy(owners_P),
        bias_P11T=_PAGE_BIAS[torch.from_numpy(seen_P)][:, None, None],
    )
    return _Own(own, partials_RO)


def _common_pages(table: PageTable, slots_R: Ints, ordinals: int) -> _Common:
    """The common pages of all families among the rows, F of them with up to G rows."""
    members_R = np.nonzero(table.common_S[slots_R])[0]
    _, leaders_F, family_R, sizes_F = np.unique(
        table.families_S[slots_R[members_R]],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    # each row's place among the rows of its family
    order = np.argsort(family_R, kind="stable")
    place_R = np.empty_like(order)
    place_R[order] = np.arange(len(order)) - (np.cumsum(sizes_F) - sizes_F)[family_R[order]]
    readers_FG = np.zeros((len(sizes_F), int(sizes_F.max())), np.int64)
    readers_FG[family_R, place_R] = members_R
    leading_slots_F = slots_R[members_R[leaders_F]]
    common_F = table.common_S[leading_slots_F]
    is_common_FO = np.arange(int(common_F.max())) < common_F[:, None]
    first_F = np.cumsum(common_F) - common_F
    partials_RO = np.zeros((len(slots_R), ordinals), np.int64)
    page_RO = first_F[family_R][:, None] + np.arange(ordinals)
    partials_RO[members_R] = page_RO * readers_FG.shape[1] + place_R[:, None]
    pages_FO = table.pages_SO[leading_slots_F, : is_common_FO.shape[1]]
    common = CommonPages(
        pages_P=torch.from_numpy(pages_FO[is_common_FO]),
        readers_PG=torch.from_numpy(np.repeat(readers_FG, common_F, axis=0)),
    )
    return _Common(common, partials_RO)


class _Own(NamedTuple):
    own: OwnPages
    partials_RO: Ints


class _Common(NamedTuple):
    common: CommonPages
    partials_RO: Ints


def _chunk_rows(table: PageTable, slots_R: Ints, counts_R: Ints, first: int) -> ChunkRows:
    ends_R = table.lengths_S[slots_R]
    places_C = np.arange(int(counts_R.max()))
    is_token_RC = places_C < counts_R[:, None]
    starts_R = first + np.cumsum(counts_R) - counts_R
    # padding repeats a row's last token; its result is dropped
    tokens_RC = starts_R[:, None] + np.minimum(places_C, counts_R[:, None] - 1)
    pages_RO = table.pages_SO[slots_R, : int(pages_for(ends_R).max())]
    positions_RC = (ends_R - counts_R)[:, None] + places_C
    seen_T = np.arange(pages_RO.shape[1] * PAGE)
    is_seen_RCT = seen_T <= positions_RC[:, :, None]
    bias_RCT = np.where(is_seen_RCT, np.float32(0), np.float32(_NEVER))
    return ChunkRows(
        tokens_RC=torch.from_numpy(tokens_RC),
        pages_RO=torch.from_numpy(pages_RO),
        bias_R1CT=torch.from_numpy(bias_RCT)[:, None],
        places=torch.from_numpy(np.nonzero(is_token_RC.reshape(-1))[0]),
        first=first,
    )
