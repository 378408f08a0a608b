"""LFM2's short convolution over a step's tokens, with the last inputs of every slot remembered.

Axes: M tokens of the step, R rows, S slots, H width, J kernel taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from espalier.rollout.engines.pages import Ints


@dataclass(frozen=True, slots=True)
class ConvolutionInputs:
    """Where each token finds the inputs before it in a line: what rows remember, then the step's.

    The same for all layers. With two taps before the last, rows a and b, and three tokens of b:

        line      a-2 a-1 b-2 b-1 | a0 b0 b1 b2
    """

    slots_R: Tensor
    num_slots: int
    earlier_JM: tuple[Tensor, ...]
    """For all taps but the last, oldest first."""
    kept: Tensor
    """The last inputs of every row, to be remembered."""

    @classmethod
    def plan(cls, slots_R: Ints, counts_R: Ints, taps: int) -> Self:
        """For rows of so many tokens each."""
        held = taps - 1
        rows_R = np.arange(len(slots_R))
        rows_M = np.repeat(rows_R, counts_R)
        starts_R = np.cumsum(counts_R) - counts_R
        local_M = np.arange(len(rows_M)) - starts_R[rows_M]
        backs = range(held, 0, -1)
        earlier = [_place(rows_M, local_M - back, starts_R, held) for back in backs]
        kept = [_place(rows_R, counts_R - back, starts_R, held) for back in backs]
        return cls(
            slots_R=torch.from_numpy(slots_R),
            num_slots=int(slots_R.max()) + 1,
            earlier_JM=tuple(torch.from_numpy(places) for places in earlier),
            kept=torch.from_numpy(np.array(kept, np.int64).T.reshape(-1)),
        )


def _place(rows: Ints, local: Ints, starts_R: Ints, held: int) -> Ints:
    """The place in the line of input number `local` of `rows`; numbers below 0 are remembered."""
    fresh = held * len(starts_R) + starts_R[rows] + local
    return np.where(local < 0, held * rows + held + local, fresh)


class ShortConvolution:
    """One layer: its weights as they were when it was built, and the state of its slots."""

    def __init__(self, conv: Lfm2ShortConv, norm_H: Tensor) -> None:
        # the norm before the projection is folded into it
        self._project = conv.in_proj.weight * norm_H
        self._project_bias = conv.in_proj.bias
        self._taps_JH = conv.conv.weight.squeeze(1).T.contiguous()
        self._taps_bias = conv.conv.bias
        self._out = conv.out_proj.weight.T
        self._out_bias = conv.out_proj.bias
        taps, width = self._taps_JH.shape
        self._recent_SJH = self._taps_JH.new_zeros(0, taps - 1, width)

    @property
    def taps(self) -> int:
        """Inputs that an output depends on: its own and those before it."""
        return len(self._taps_JH)

    def add(self, hidden_MH: Tensor, normed_MH: Tensor, inputs: ConvolutionInputs) -> None:
        """Add the layer's output to `hidden_MH`, in place."""
        projected = F.linear(normed_MH, self._project, self._project_bias)
        gate_in, gate_out, values = projected.chunk(3, dim=1)
        fresh = gate_in * values
        self._fit(inputs.num_slots)
        recent = self._recent_SJH.index_select(0, inputs.slots_R)
        line = torch.cat((recent.flatten(0, 1), fresh))
        mixed = fresh.mul_(self._taps_JH[-1])
        for tap, earlier_M in enumerate(inputs.earlier_JM):
            mixed.addcmul_(line.index_select(0, earlier_M), self._taps_JH[tap])
        if self._taps_bias is not None:
            mixed += self._taps_bias
        kept = line.index_select(0, inputs.kept).view(recent.shape)
        self._recent_SJH.index_copy_(0, inputs.slots_R, kept)
        hidden_MH.addmm_(mixed.mul_(gate_out), self._out)
        if self._out_bias is not None:
            hidden_MH += self._out_bias

    def fork(self, source: int, targets: Tensor) -> None:
        """Copy the state of one slot to others."""
        self._fit(int(targets.max()) + 1)
        self._recent_SJH[targets] = self._recent_SJH[source].clone()

    def release(self, slot: int) -> None:
        """Back to zeros, as before a first token."""
        if slot < len(self._recent_SJH):
            self._recent_SJH[slot] = 0

    def _fit(self, slots: int) -> None:
        held = len(self._recent_SJH)
        if slots > held:
            larger = self._recent_SJH.new_zeros(2 * slots, *self._recent_SJH.shape[1:])
            larger[:held] = self._recent_SJH
            self._recent_SJH = larger
