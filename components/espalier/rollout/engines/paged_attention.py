"""Attention of a step's tokens over paged keys and values.

Rows that append one token (most rows of most steps) share two batched products over all pages; each
page gives a partial result that is merged by its log-sum-exp (Dao et al. 2022, arXiv:2205.14135,
sec. 3.1; pages: Kwon et al. 2023, arXiv:2309.06180). Rows that read several tokens at once, prompts
and observations, are padded to a common length and go through torch's own attention.

Axes: R rows, M tokens of the step, P pages, H query heads, K key heads, D head width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.rollout.engines.pages import PAGE, PageCopies
from espalier.rollout.engines.step_plan import (
    ChunkRows,
    CommonPages,
    OwnPages,
    SingleRows,
    StepPlan,
)


class PagePool:
    """Keys and values of one layer, in float32; grows as pages are used."""

    def __init__(self) -> None:
        self._pool_2PKTD = torch.zeros(2, 0, 0, PAGE, 0)

    def copy(self, copies: PageCopies) -> None:
        """Copy whole pages."""
        self._fit(int(copies.targets.max(initial=-1)) + 1)
        content = self._pool_2PKTD.index_select(1, torch.from_numpy(copies.sources))
        self._pool_2PKTD.index_copy_(1, torch.from_numpy(copies.targets), content)

    def attend(
        self, queries_MHD: Tensor, keys_MKD: Tensor, values_MKD: Tensor, plan: StepPlan
    ) -> Tensor:
        """Write the step's keys and values, then read.

        Args:
            queries_MHD: already scaled; query heads of one key head lie side by side.
            keys_MKD: of the same tokens.
            values_MKD: of the same tokens.
            plan: of this step.

        Returns:
            [M, H, D]
        """
        if not self._pool_2PKTD.numel():
            heads, width = keys_MKD.shape[1:]
            self._pool_2PKTD = _zeros(plan.pages, heads, width)
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
        attended = F.scaled_dot_product_attention(
            queries.view(*rows.tokens_RC.shape, -1, width).transpose(1, 2),
            keys,
            values,
            attn_mask=rows.bias_R1CT,
            scale=1.0,
            enable_gqa=True,
        )
        return attended.transpose(1, 2).flatten(0, 1).index_select(0, rows.places)

    def _fit(self, pages: int) -> None:
        _, held, heads, _, width = self._pool_2PKTD.shape
        if pages > held and self._pool_2PKTD.numel():
            larger = _zeros(2 * pages, heads, width)
            larger[:, :held] = self._pool_2PKTD
            self._pool_2PKTD = larger


def _zeros(pages: int, heads: int, width: int) -> Tensor:
    """Zeros, as a masked NaN would still be one; numpy's take no memory before they are touched."""
    return torch.from_numpy(np.zeros((2, pages, heads, PAGE, width), np.float32))


class _Partial(NamedTuple):
    """What pages contribute: a mean of their values, and the log of its weight."""

    values_PHD: Tensor
    mass_PH: Tensor


def _attend_pages(
    queries_PKGD: Tensor, keys_PKTD: Tensor, values_PKTD: Tensor, bias_P11T: Tensor | None
) -> _Partial:
    """Each page by itself, under G queries of each key head."""
    pages, heads, group, width = queries_PKGD.shape
    scores = torch.bmm(queries_PKGD.flatten(0, 1), keys_PKTD.flatten(0, 1).transpose(1, 2))
    if bias_P11T is not None:
        scores.view(pages, heads, group, PAGE).add_(bias_P11T)
    weights = scores.softmax(-1)
    values = torch.bmm(weights, values_PKTD.flatten(0, 1))
    # of a softmax, the log-sum-exp follows from where it is largest
    mass = scores.amax(-1) - weights.amax(-1).log_()
    return _Partial(values.view(pages, heads * group, width), mass.view(pages, heads * group))
