"""Layers of LFM2 and of the Llama family, laid out for `FusedDecoder`.

Queries, keys and values are one matrix, and so are the two gates of a feed-forward block; the norms
before them are folded in. A head's channels are interleaved, so that rotating them is one complex
product. LFM2's short convolution remembers the last inputs of every slot.

Axes: H width, N heads, D head width, I width of the feed-forward block; M tokens of the step, R
rows, S slots, J kernel taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Lfm2ForCausalLM, PreTrainedModel
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from espalier.policy.lora import merged_weight
from espalier.rollout.engines.pages import Ints


@dataclass(frozen=True, slots=True)
class RevocableInputs:
    """The last inputs of rows whose last tokens may be taken back, row after row, in one tensor."""

    places: Tensor
    """Positions of these inputs in the line of `ConvolutionInputs`."""
    ends_S: Ints
    """Where the inputs of a slot end; 0 for others."""
    held: int

    def inputs_after(self, slots_R: Ints, counts_R: Ints) -> tuple[Tensor, Tensor]:
        """Return the slots, and the inputs that each keeps without its last `counts_R` tokens."""
        ends_R = self.ends_S[slots_R] - counts_R
        places_RJ = ends_R[:, None] + np.arange(-self.held, 0)
        return torch.from_numpy(slots_R), torch.from_numpy(places_RJ.reshape(-1))


@dataclass(frozen=True, slots=True)
class ConvolutionInputs:
    """Index of each token's earlier inputs, in a line of the remembered inputs, then the step's.

    The same for all layers. With two taps before the last, one token of row a and three of row b:

        line      a-2 a-1 b-2 b-1 | a0 b0 b1 b2
    """

    slots_R: Tensor
    num_slots: int
    earlier_JM: tuple[Tensor, ...]
    """Indices for all taps but the last, oldest first."""
    kept: Tensor
    """Indices of the last inputs of every row, which are remembered."""
    revocable: RevocableInputs | None

    @classmethod
    def plan(cls, slots_R: Ints, counts_R: Ints, taps: int, lasts_R: Ints | None = None) -> Self:
        """Plan for rows of `counts_R` tokens each; all but the first of `lasts_R` are revocable."""
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
            revocable=(
                None if lasts_R is None else _revocable(slots_R, counts_R, lasts_R, starts_R, held)
            ),
        )


def _revocable(
    slots_R: Ints, counts_R: Ints, lasts_R: Ints, starts_R: Ints, held: int
) -> RevocableInputs:
    drafted_D = np.nonzero(lasts_R > 1)[0]
    sizes_D = lasts_R[drafted_D] - 1 + held
    ends_D = np.cumsum(sizes_D)
    rows = np.repeat(drafted_D, sizes_D)
    backs = np.repeat(ends_D, sizes_D) - np.arange(len(rows))
    ends_S = np.zeros(int(slots_R.max()) + 1, np.int64)
    ends_S[slots_R[drafted_D]] = ends_D
    places = _place(rows, counts_R[rows] - backs, starts_R, held)
    return RevocableInputs(torch.from_numpy(places), ends_S, held)


def _place(rows: Ints, local: Ints, starts_R: Ints, held: int) -> Ints:
    """Return the line index of input `local` of `rows`; negative inputs are remembered ones."""
    fresh = held * len(starts_R) + starts_R[rows] + local
    return np.where(local < 0, held * rows + held + local, fresh)


class ShortConvolution:
    """One convolution layer: a copy of its weights, and the state of its slots."""

    def __init__(self, conv: Lfm2ShortConv, norm_H: Tensor) -> None:
        # the norm before the projection is folded into it
        self._project = merged_weight(conv.in_proj) * norm_H
        self._project_bias = conv.in_proj.bias
        self._taps_JH = conv.conv.weight.squeeze(1).T.contiguous()
        self._taps_bias = conv.conv.bias
        self._out = merged_weight(conv.out_proj).T
        self._out_bias = conv.out_proj.bias
        taps, width = self._taps_JH.shape
        self._recent_SJH = self._taps_JH.new_zeros(0, taps - 1, width)
        self._revocable = self._recent_SJH.flatten(0, 1)

    @property
    def taps(self) -> int:
        """Number of inputs that an output depends on, its own included."""
        return len(self._taps_JH)

    def add(self, hidden_MH: Tensor, normed_MH: Tensor, inputs: ConvolutionInputs) -> None:
        """Add the layer's output to `hidden_MH`, in place."""
        projected = F.linear(normed_MH, self._project, self._project_bias)
        gate_in, gate_out, values = projected.chunk(3, dim=1)
        fresh = gate_in * values
        self._fit(inputs.num_slots)
        recent = self._recent_SJH.index_select(0, inputs.slots_R)
        line = torch.cat((recent.flatten(0, 1), fresh))
        if inputs.revocable is not None:
            self._revocable = line.index_select(0, inputs.revocable.places)
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

    def rewind(self, slots: Tensor, places: Tensor) -> None:
        """Set the state of some slots to the revocable inputs at `places`."""
        inputs = self._revocable.index_select(0, places)
        self._recent_SJH[slots] = inputs.view(len(slots), *self._recent_SJH.shape[1:])

    def fork(self, source: int, targets: Tensor, *, num_slots: int) -> None:
        """Copy the state of one slot to others, all of them below `num_slots`."""
        self._fit(num_slots)
        self._recent_SJH[targets] = self._recent_SJH[source].clone()

    def release(self, slot: int) -> None:
        """Reset the state of a slot to zeros, as before a first token."""
        if slot < len(self._recent_SJH):
            self._recent_SJH[slot] = 0

    def _fit(self, slots: int) -> None:
        held = len(self._recent_SJH)
        if slots > held:
            larger = self._recent_SJH.new_zeros(2 * slots, *self._recent_SJH.shape[1:])
            larger[:held] = self._recent_SJH
            self._recent_SJH = larger


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Projections of an attention layer."""

    project: Tensor
    """[(query + 2 key heads) * D, H]; includes the queries' scale if they have no norm."""
    project_bias: Tensor | None
    qk_norm_ND: Tensor | None
    """Weights of the norms of query and key heads; those of queries include the scale."""
    out: Tensor
    """[query heads * D, H]"""
    out_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer: attention or convolution, then a gated feed-forward block."""

    mixer: AttentionWeights | ShortConvolution
    gates: Tensor
    """[2 * I, H]"""
    down: Tensor
    """[I, H]"""


def take_layers(model: PreTrainedModel) -> list[LayerWeights]:
    """Copy the current weights of all layers."""
    layers = cast("Any", model.base_model).layers
    if isinstance(model, Lfm2ForCausalLM):
        return [_lfm2_layer(layer) for layer in layers]
    return [_llama_layer(layer) for layer in layers]


def _lfm2_layer(layer: Any) -> LayerWeights:  # noqa: ANN401 (transformers types layers as modules)
    norm_H = layer.operator_norm.weight
    if layer.is_attention_layer:
        attn = layer.self_attn
        norms = (attn.q_layernorm.weight, attn.k_layernorm.weight)
        mixer = _attention(attn, attn.out_proj, norm_H, norms)
    else:
        mixer = ShortConvolution(layer.conv, norm_H)
    block = layer.feed_forward
    return LayerWeights(
        mixer=mixer,
        gates=torch.cat((merged_weight(block.w1), merged_weight(block.w3))) * layer.ffn_norm.weight,
        down=merged_weight(block.w2).T,
    )


def _llama_layer(layer: Any) -> LayerWeights:  # noqa: ANN401 (transformers types layers as modules)
    attn, block = layer.self_attn, layer.mlp
    norms = (attn.q_norm.weight, attn.k_norm.weight) if hasattr(attn, "q_norm") else None
    gates = torch.cat((merged_weight(block.gate_proj), merged_weight(block.up_proj)))
    return LayerWeights(
        mixer=_attention(attn, attn.o_proj, layer.input_layernorm.weight, norms),
        gates=gates * layer.post_attention_layernorm.weight,
        down=merged_weight(block.down_proj).T,
    )


def _attention(
    attn: Any,  # noqa: ANN401 (transformers types layers as modules)
    out: nn.Linear,
    input_norm_H: Tensor,
    qk_norms: tuple[Tensor, Tensor] | None,
) -> AttentionWeights:
    width = attn.head_dim
    scale = float(attn.scaling)
    queries, keys = (_Heads.of(part, width).interleaved() for part in (attn.q_proj, attn.k_proj))
    values = _Heads.of(attn.v_proj, width)
    if qk_norms is None:
        queries = queries.scaled(scale)
        qk_norm_ND = None
    else:
        order = _interleaving(width)
        q_norm_D, k_norm_D = qk_norms[0][order] * scale, qk_norms[1][order]
        heads, key_heads = len(queries.weight_NDH), len(keys.weight_NDH)
        qk_norm_ND = torch.cat((q_norm_D.expand(heads, width), k_norm_D.expand(key_heads, width)))
    parts = (queries, keys, values)
    biases = [part.bias_ND.flatten() for part in parts if part.bias_ND is not None]
    return AttentionWeights(
        project=torch.cat([part.weight_NDH for part in parts]).flatten(0, 1) * input_norm_H,
        project_bias=torch.cat(biases) if biases else None,
        qk_norm_ND=qk_norm_ND,
        out=merged_weight(out).T,
        out_bias=out.bias,
    )


@dataclass(frozen=True, slots=True)
class _Heads:
    """A projection, split into its heads."""

    weight_NDH: Tensor
    bias_ND: Tensor | None

    @classmethod
    def of(cls, projection: nn.Linear, width: int) -> _Heads:
        bias = projection.bias
        weight_NDH = merged_weight(projection).view(-1, width, projection.in_features)
        return cls(weight_NDH, None if bias is None else bias.view(-1, width))

    def interleaved(self) -> _Heads:
        order = _interleaving(self.weight_NDH.shape[1])
        bias_ND = None if self.bias_ND is None else self.bias_ND[:, order]
        return _Heads(self.weight_NDH[:, order], bias_ND)

    def scaled(self, scale: float) -> _Heads:
        bias_ND = None if self.bias_ND is None else self.bias_ND * scale
        return _Heads(self.weight_NDH * scale, bias_ND)


def _interleaving(width: int) -> Tensor:
    """Return the channel order that alternates between both rotated halves."""
    return torch.arange(width).view(2, width // 2).T.reshape(-1)
