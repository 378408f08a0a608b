"""A decoder for LFM2 with its caches laid out beforehand: the embedded policy's fast path.

Same arithmetic as transformers' Lfm2ForCausalLM (a test compares the two), without a cache that is
copied at every token and without per-layer dispatch.

Axes: B rows, T tokens, H width, N heads, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Lfm2ForCausalLM
from transformers.models.lfm2.modeling_lfm2 import (
    Lfm2Attention,
    Lfm2DecoderLayer,
    Lfm2ShortConv,
)


@dataclass(slots=True)
class _AttentionCache:
    keys_BNTD: Tensor
    values_BNTD: Tensor


@dataclass(slots=True)
class _ConvCache:
    recent_BHK: Tensor
    """The last kernel - 1 gated inputs."""


class Lfm2Decoder:
    """Lock-step decoding of an Lfm2ForCausalLM; reads the model's weights, never copies them."""

    def __init__(self, model: Lfm2ForCausalLM) -> None:
        self._model = model
        self._layers = cast("list[Lfm2DecoderLayer]", list(model.model.layers))
        self._caches: list[_AttentionCache | _ConvCache] = []
        self._length = 0
        config = model.config
        self._heads = config.num_attention_heads
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._head_width = config.hidden_size // config.num_attention_heads
        self._rotary_TD: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @torch.inference_mode()
    def start(self, token_ids_PT: Tensor, *, rows: Tensor, max_tokens: int) -> Tensor:
        """See `Decoder.start`."""
        prompts, self._length = token_ids_PT.shape[0], 0
        self._caches = [self._empty_cache(layer, prompts, max_tokens) for layer in self._layers]
        positions = torch.arange(max_tokens)[None]
        cos, sin = self._model.model.rotary_emb(torch.empty(0), position_ids=positions)
        self._rotary_TD = (cos[0], sin[0])
        hidden = self._forward(token_ids_PT)
        self.keep(rows)
        return hidden[rows]

    @torch.inference_mode()
    def advance(self, token_ids_B: Tensor) -> Tensor:
        """See `Decoder.advance`."""
        return self._forward(token_ids_B[:, None])

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self._model.lm_head(hidden_NH)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """See `Decoder.keep`."""
        for cache in self._caches:
            if isinstance(cache, _ConvCache):
                cache.recent_BHK = cache.recent_BHK[rows]
            else:
                cache.keys_BNTD = self._kept(cache.keys_BNTD, rows)
                cache.values_BNTD = self._kept(cache.values_BNTD, rows)

    def _kept(self, cached_BNTD: Tensor, rows: Tensor) -> Tensor:
        """Copies only the tokens read so far; the rest of the reserved space stays unwritten."""
        kept = cached_BNTD.new_empty(len(rows), *cached_BNTD.shape[1:])
        kept[:, :, : self._length] = cached_BNTD[rows, :, : self._length]
        return kept

    def _empty_cache(
        self, layer: Lfm2DecoderLayer, rows: int, max_tokens: int
    ) -> _AttentionCache | _ConvCache:
        config = self._model.config
        if not layer.is_attention_layer:
            recent = torch.zeros(rows, config.hidden_size, config.conv_L_cache - 1)
            return _ConvCache(recent)
        shape = (rows, config.num_key_value_heads, max_tokens, self._head_width)
        return _AttentionCache(torch.empty(shape), torch.empty(shape))

    def _forward(self, token_ids_BT: Tensor) -> Tensor:
        model = self._model.model
        hidden = F.embedding(token_ids_BT, model.embed_tokens.weight)
        for layer, cache in zip(self._layers, self._caches, strict=True):
            normed = layer.operator_norm(hidden)
            if isinstance(cache, _ConvCache):
                hidden = hidden + self._convolve(layer.conv, cache, normed)
            else:
                hidden = hidden + self._attend(layer.self_attn, cache, normed)
            hidden = hidden + layer.feed_forward(layer.ffn_norm(hidden))
        self._length += token_ids_BT.shape[1]
        return model.embedding_norm(hidden[:, -1])

    def _convolve(self, conv: Lfm2ShortConv, cache: _ConvCache, normed_BTH: Tensor) -> Tensor:
        gate_in, gate_out, values = conv.in_proj(normed_BTH).transpose(1, 2).chunk(3, dim=1)
        extended = torch.cat((cache.recent_BHK, gate_in * values), dim=2)
        cache.recent_BHK = extended[:, :, -cache.recent_BHK.shape[2] :].contiguous()
        weight_HK = conv.conv.weight.squeeze(1)
        if normed_BTH.shape[1] == 1:
            mixed = (extended * weight_HK).sum(dim=2, keepdim=True)
        else:
            mixed = F.conv1d(extended, conv.conv.weight, groups=weight_HK.shape[0])
        return conv.out_proj((gate_out * mixed).transpose(1, 2))

    def _attend(self, attn: Lfm2Attention, cache: _AttentionCache, normed_BTH: Tensor) -> Tensor:
        batch, new, _ = normed_BTH.shape
        start, end = self._length, self._length + new
        shape = (batch, new, -1, self._head_width)
        cos, sin = (table[start:end, None] for table in self._rotary_TD)
        queries = _rotated(attn.q_layernorm(attn.q_proj(normed_BTH).view(shape)), cos, sin)
        keys = _rotated(attn.k_layernorm(attn.k_proj(normed_BTH).view(shape)), cos, sin)
        cache.keys_BNTD[:, :, start:end] = keys.transpose(1, 2)
        cache.values_BNTD[:, :, start:end] = attn.v_proj(normed_BTH).view(shape).transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            cache.keys_BNTD[:, :, :end],
            cache.values_BNTD[:, :, :end],
            is_causal=new > 1,
            enable_gqa=self._groups > 1,
        )
        return attn.out_proj(attended.transpose(1, 2).reshape(batch, new, -1))


def _rotated(states_BTND: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    half = states_BTND.shape[-1] // 2
    turned = torch.cat((-states_BTND[..., half:], states_BTND[..., :half]), dim=-1)
    return states_BTND * cos_T1D + turned * sin_T1D
