"""The layers of known architectures, laid out for `FusedDecoder`.

What a projection reads is laid out for it: queries, keys and values are one matrix, and so are the
two gates of a feed-forward block; the norms before them are folded in. A head's channels are
interleaved, so that rotating them is one complex product.

Axes: H width, N heads, D head width, I width of the feed-forward block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Lfm2ForCausalLM, PreTrainedModel

from espalier.rollout.engines.short_convolution import ShortConvolution


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Projections of an attention layer."""

    project: Tensor
    """[(query + 2 key heads) * D, H]; queries are scaled here where they are not normed."""
    project_bias: Tensor | None
    qk_norm_ND: Tensor | None
    """Weights of the norms of query and key heads; those of queries hold the scale."""
    out: Tensor
    """[query heads * D, H]"""
    out_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer: a mixer of tokens, then a gated feed-forward block."""

    mixer: AttentionWeights | ShortConvolution
    gates: Tensor
    """[2 * I, H]"""
    down: Tensor
    """[I, H]"""


def take_layers(model: PreTrainedModel) -> list[LayerWeights]:
    """Copy the weights of all layers as they are now."""
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
        gates=torch.cat((block.w1.weight, block.w3.weight)) * layer.ffn_norm.weight,
        down=block.w2.weight.T,
    )


def _llama_layer(layer: Any) -> LayerWeights:  # noqa: ANN401 (transformers types layers as modules)
    attn, block = layer.self_attn, layer.mlp
    norms = (attn.q_norm.weight, attn.k_norm.weight) if hasattr(attn, "q_norm") else None
    gates = torch.cat((block.gate_proj.weight, block.up_proj.weight))
    return LayerWeights(
        mixer=_attention(attn, attn.o_proj, layer.input_layernorm.weight, norms),
        gates=gates * layer.post_attention_layernorm.weight,
        down=block.down_proj.weight.T,
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
        out=out.weight.T,
        out_bias=out.bias,
    )


@dataclass(frozen=True, slots=True)
class _Heads:
    """A projection by its heads."""

    weight_NDH: Tensor
    bias_ND: Tensor | None

    @classmethod
    def of(cls, projection: nn.Linear, width: int) -> _Heads:
        bias = projection.bias
        weight_NDH = projection.weight.view(-1, width, projection.in_features)
        return cls(weight_NDH, None if bias is None else bias.view(-1, width))

    def interleaved(self) -> _Heads:
        order = _interleaving(self.weight_NDH.shape[1])
        bias_ND = None if self.bias_ND is None else self.bias_ND[:, order]
        return _Heads(self.weight_NDH[:, order], bias_ND)

    def scaled(self, scale: float) -> _Heads:
        bias_ND = None if self.bias_ND is None else self.bias_ND * scale
        return _Heads(self.weight_NDH * scale, bias_ND)


def _interleaving(width: int) -> Tensor:
    """Channels of both rotated halves in turns."""
    return torch.arange(width).view(2, width // 2).T.reshape(-1)
