"""Attention of a step's tokens over paged keys and values.

`plan_step` decides where a step's tokens are written and what each may read; `PagePool` holds one
layer's keys and values and computes the attention.

Rows that append one token (most rows of most steps) share two batched products over all pages; each
page gives a partial result that is merged by its log-sum-exp (Dao et al. 2022, arXiv:2205.14135,
sec. 3.1; pages: Kwon et al. 2023, arXiv:2309.06180). Rows that read several tokens at once, prompts
and observations, are padded to a common length and go through torch's own attention.

Axes: R rows, M tokens of the step, P pages, O a row's pages in order, C padded chunk length, T
tokens that can be read, H query heads, K key heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from espalier.rollout.engines.accelerator import to_device
from espalier.rollout.engines.pages import (
    PAGE,
    Ints,
    PageCopies,
    PageTable,
    last_places,
    pages_for,
)

_SPARSE = 0.5
"""A step that needs less than this share of the pages gathers them; otherwise it uses all pages, as
the copy would cost a second read."""

_NEVER = float("-inf")
# row n: PAGE biases that let the first n tokens of a page through
_PAGE_BIAS = torch.where(torch.arange(PAGE) < torch.arange(PAGE + 1)[:, None], 0.0, _NEVER)


class OwnPages(NamedTuple):
    """Pages that a single row reads."""

    pages_P: Tensor | None
    """The pages to gather; None uses all pages up to the extent."""
    extent: int
    owners_P: Tensor
    """The row of each page."""
    bias_P11T: Tensor


class CommonPages(NamedTuple):
    """Pages that several rows read, all full; the rows are padded to the same number."""

    pages_P: Tensor
    readers_PG: Tensor


class SingleRows(NamedTuple):
    """The pages of rows with one token each, and the places of their partial results."""

    own: OwnPages
    common: CommonPages | None
    partials_RO: Tensor
    """Indices into the results of own pages, then of common pages, reader by reader."""
    bias_RO1: Tensor


class ChunkRows(NamedTuple):
    """The pages of rows with several tokens each, padded to one length."""

    tokens_RC: Tensor
    """The step's token at each padded position."""
    pages_RO: Tensor
    bias_R1CT: Tensor
    places: Tensor
    """Which of the R * C padded positions hold tokens, in the order of the step."""
    first: int
    """The first token of these rows in the step; the last is `first + len(places) - 1`."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Where one step's tokens are written and what they may read; the same for all layers."""

    positions_M: Tensor
    pages_M: Tensor
    offsets_M: Tensor
    lasts: Tensor
    """The tokens whose hidden states are needed: the last of each row, or more of them."""
    num_single: int
    single: SingleRows | None
    chunks: tuple[ChunkRows, ...]
    pages: int
    """Number of pages that the pools must have."""
    longest: int
    """Number of tokens of the longest context in the step."""


def plan_step(
    table: PageTable, slots_R: Ints, counts_R: Ints, lasts_R: Ints | None = None
) -> StepPlan:
    """Assign pages to the step's tokens, and plan what each of them may read.

    Args:
        table: the page table, which is extended by the tokens.
        slots_R: distinct slots.
        counts_R: tokens of each slot, in ascending order.
        lasts_R: how many of a row's last tokens need hidden states; None needs one per row.
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
    lasts = bounds_R - 1 if lasts_R is None else last_places(counts_R, lasts_R)
    return StepPlan(
        positions_M=torch.from_numpy(positions_M),
        pages_M=torch.from_numpy(pages_M),
        offsets_M=torch.from_numpy(positions_M % PAGE),
        lasts=torch.from_numpy(lasts),
        num_single=num_single,
        single=_single_rows(table, slots_R[:num_single]) if num_single else None,
        chunks=tuple(chunks),
        pages=table.extent,
        longest=int(ends_R.max()),
    )


def _class_end(counts_R: Ints, start: int) -> int:
    """Return the end of the rows from `start` of which none is over twice as long as another."""
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
    # pages of rows outside this step get an arbitrary bias; their results are never read
    seen_P = np.clip(table.lengths_S[slots_R][owners_P] - ordinals_P * PAGE, 1, PAGE)
    own = OwnPages(
        pages_P=gathered,
        extent=table.extent,
        owners_P=torch.from_numpy(owners_P),
        bias_P11T=_PAGE_BIAS[torch.from_numpy(seen_P)][:, None, None],
    )
    return _Own(own, partials_RO)


def _common_pages(table: PageTable, slots_R: Ints, ordinals: int) -> _Common:
    """Return the common pages of all shared prefixes: F prefixes, each of up to G rows."""
    members_R = np.nonzero(table.common_S[slots_R])[0]
    _, leaders_F, family_R, sizes_F = np.unique(
        table.prefix_ids_S[slots_R[members_R]],
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


class PageMoves(NamedTuple):
    """`PageCopies`, for the pools of all layers."""

    sources: Tensor
    targets: Tensor
    pages: int
    """Number of pages that the pools must have."""

    @classmethod
    def on(cls, device: torch.device, copies: PageCopies) -> PageMoves:
        """Return the copies for pools on `device`."""
        pages = int(copies.targets.max(initial=-1)) + 1
        moves = cls(torch.from_numpy(copies.sources), torch.from_numpy(copies.targets), pages)
        return to_device(moves, device)


class PagePool:
    """Keys and values of one layer, in float32 on their device; grows as pages are used."""

    def __init__(self) -> None:
        self._pool_2PKTD = torch.zeros(2, 0, 0, PAGE, 0)

    def copy(self, moves: PageMoves) -> None:
        """Copy whole pages."""
        self._fit(moves.pages)
        content = self._pool_2PKTD.index_select(1, moves.sources)
        self._pool_2PKTD.index_copy_(1, moves.targets, content)

    def attend(
        self, queries_MHD: Tensor, keys_MKD: Tensor, values_MKD: Tensor, plan: StepPlan
    ) -> Tensor:
        """Write the step's keys and values, then attend.

        Args:
            queries_MHD: already scaled; query heads of one key head are adjacent.
            keys_MKD: of the same tokens.
            values_MKD: of the same tokens.
            plan: of this step.

        Returns:
            [M, H, D]
        """
        if not self._pool_2PKTD.numel():
            heads, width = keys_MKD.shape[1:]
            self._pool_2PKTD = _zeros(plan.pages, heads, width, keys_MKD.device)
        self._fit(plan.pages)
        for kind, written_MKD in enumerate((keys_MKD, values_MKD)):
            self._pool_2PKTD[kind, plan.pages_M, :, plan.offsets_M] = written_MKD
        if plan.single is not None and not plan.chunks:
            return self._attend_single(queries_MHD, plan.single)
        attended = torch.empty_like(queries_MHD)
        if plan.single is not None:
            single_R = slice(0, plan.num_single)
            attended[single_R] = self._attend_single(queries_MHD[single_R], plan.single)
        for chunk in plan.chunks:
            rows = slice(chunk.first, chunk.first + len(chunk.places))
            attended[rows] = self._attend_chunk(queries_MHD, chunk)
        return attended

    def _attend_single(self, queries_RHD: Tensor, rows: SingleRows) -> Tensor:
        partial = self._own(queries_RHD, rows.own)
        if rows.common is not None:
            common = self._common(queries_RHD, rows.common)
            partial = _Partial(*(torch.cat(pair) for pair in zip(partial, common, strict=True)))
        places, shape = rows.partials_RO.view(-1), (*rows.partials_RO.shape, -1)
        shares = partial.mass_PH.index_select(0, places).view(shape).add_(rows.bias_RO1).softmax(1)
        values = partial.values_PHD.flatten(1).index_select(0, places)
        values = values.view(*shares.shape, queries_RHD.shape[2])
        return values.mul_(shares[..., None]).sum(1)

    def _own(self, queries_RHD: Tensor, rows: OwnPages) -> _Partial:
        if rows.pages_P is None:
            keys, values = self._pool_2PKTD[:, : rows.extent]
        else:
            keys, values = self._pool_2PKTD.index_select(1, rows.pages_P)
        queries = queries_RHD.flatten(1).index_select(0, rows.owners_P)
        pages, heads, _, width = keys.shape
        queries_PKGD = queries.view(pages, heads, -1, width)
        return _attend_pages(queries_PKGD, keys, values, rows.bias_P11T)

    def _common(self, queries_RHD: Tensor, rows: CommonPages) -> _Partial:
        keys, values = self._pool_2PKTD.index_select(1, rows.pages_P)
        pages, heads, _, width = keys.shape
        readers = rows.readers_PG.shape[1]
        queries = queries_RHD.flatten(1).index_select(0, rows.readers_PG.view(-1))
        queries = queries.view(pages, readers, heads, -1, width).transpose(1, 2)
        partial = _attend_pages(queries.flatten(2, 3), keys, values, None)
        shape = (pages, heads, readers, -1)
        values = partial.values_PHD.view(*shape, width).transpose(1, 2)
        mass = partial.mass_PH.view(shape).transpose(1, 2)
        return _Partial(
            values.reshape(pages * readers, -1, width), mass.reshape(pages * readers, -1)
        )

    def _attend_chunk(self, queries_MHD: Tensor, rows: ChunkRows) -> Tensor:
        heads, width = self._pool_2PKTD.shape[2], self._pool_2PKTD.shape[4]
        count, ordinals = rows.pages_RO.shape
        seen = self._pool_2PKTD.index_select(1, rows.pages_RO.view(-1))
        seen = seen.view(2, count, ordinals, heads, PAGE, width).transpose(2, 3)
        keys, values = seen.reshape(2, count, heads, ordinals * PAGE, width)
        queries = queries_MHD.index_select(0, rows.tokens_RC.view(-1))
        on_cpu = keys.device.type == "cpu"
        if not on_cpu:
            # with a mask, torch's own grouping of heads has no fused kernel on an accelerator
            group = queries_MHD.shape[1] // heads
            keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        attended = F.scaled_dot_product_attention(
            queries.view(*rows.tokens_RC.shape, -1, width).transpose(1, 2),
            keys,
            values,
            attn_mask=rows.bias_R1CT,
            scale=1.0,
            enable_gqa=on_cpu,
        )
        return attended.transpose(1, 2).flatten(0, 1).index_select(0, rows.places)

    def _fit(self, pages: int) -> None:
        _, held, heads, _, width = self._pool_2PKTD.shape
        if pages > held and self._pool_2PKTD.numel():
            device = self._pool_2PKTD.device
            # spare pages take no memory on the CPU
            wanted = 2 * pages if device.type == "cpu" else pages + pages // 4
            larger = _zeros(wanted, heads, width, device)
            larger[:, :held] = self._pool_2PKTD
            self._pool_2PKTD = larger


def _zeros(pages: int, heads: int, width: int, device: torch.device) -> Tensor:
    """Return zeros, as a masked NaN would still give NaN; numpy allocates them on first write."""
    shape = (2, pages, heads, PAGE, width)
    if device.type != "cpu":
        return torch.zeros(shape, device=device)
    return torch.from_numpy(np.zeros(shape, np.float32))


class _Partial(NamedTuple):
    """The result of single pages: a weighted mean of their values, and the log of its weight."""

    values_PHD: Tensor
    mass_PH: Tensor


def _attend_pages(
    queries_PKGD: Tensor, keys_PKTD: Tensor, values_PKTD: Tensor, bias_P11T: Tensor | None
) -> _Partial:
    """Attend over each page by itself, with G queries per key head."""
    pages, heads, group, width = queries_PKGD.shape
    scores = torch.bmm(queries_PKGD.flatten(0, 1), keys_PKTD.flatten(0, 1).transpose(1, 2))
    if bias_P11T is not None:
        scores.view(pages, heads, group, PAGE).add_(bias_P11T)
    weights = scores.softmax(-1)
    values = torch.bmm(weights, values_PKTD.flatten(0, 1))
    # log-sum-exp of the scores, from the largest score and its softmax weight
    mass = scores.amax(-1) - weights.amax(-1).log_()
    return _Partial(values.view(pages, heads * group, width), mass.view(pages, heads * group))
