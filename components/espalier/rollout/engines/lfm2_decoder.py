"""A decoder for LFM2, the embedded policy's architecture: few, large operations a step.

Same arithmetic as transformers' Lfm2ForCausalLM (a test compares the two). What a projection reads
is laid out for it when weights are taken: queries, keys and values are one matrix, and so are the
two gates of the feed-forward block; the norms before them are folded in. A head's channels are
interleaved, so that rotating them is one complex product.

Axes: M tokens of a step, R rows, H width, N heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Lfm2ForCausalLM
from transformers.models.lfm2.modeling_lfm2 import Lfm2DecoderLayer

from espalier.rollout.engines.paged_attention import PagePool
from espalier.rollout.engines.pages import Ints, PageCopies, PageTable
from espalier.rollout.engines.short_convolution import ConvolutionInputs, ShortConvolution
from espalier.rollout.engines.step_plan import StepPlan, plan_step


@dataclass(slots=True, kw_only=True)
class _Attention:
    """Weights of an attention layer, and what its rows have written."""

    project: Tensor
    qk_norm_ND: Tensor
    out: Tensor
    pool: PagePool = field(default_factory=PagePool)


@dataclass(slots=True, kw_only=True)
class _Layer:
    mixer: _Attention | ShortConvolution
    gates: Tensor
    down: Tensor


class Lfm2Decoder:
    """Decodes an Lfm2ForCausalLM with the default rotary embedding.

    Holds the projections of all layers a second time, rearranged; embeddings are read in place.
    """

    def __init__(self, model: Lfm2ForCausalLM) -> None:
        self._model = model
        config = model.config
        self._eps = config.norm_eps
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._head_width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        half = self._head_width // 2
        self._interleaved = torch.arange(self._head_width).view(2, half).T.reshape(-1)
        self._layers: list[_Layer] = []
        self._table = PageTable()
        self._rotations_TD = torch.empty(0, half, dtype=torch.complex64)

    @torch.inference_mode()
    def begin(self) -> None:
        """See `Decoder.begin`."""
        layers = cast("list[Lfm2DecoderLayer]", list(self._model.model.layers))
        self._layers = [self._taken(layer) for layer in layers]
        self._table = PageTable()

    def end(self) -> None:
        """See `Decoder.end`."""
        self._layers = []
        self._table = PageTable()

    @torch.inference_mode()
    def advance(self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints) -> Tensor:
        """See `Decoder.advance`."""
        plan = plan_step(self._table, slots_R, counts_R)
        rotations_M1D = self._rotations(plan.longest).index_select(0, plan.positions_M)[:, None]
        inputs = ConvolutionInputs.plan(slots_R, counts_R, self._model.config.conv_L_cache)
        embeddings = self._model.model.embed_tokens.weight
        hidden = F.embedding(torch.from_numpy(token_ids_M), embeddings)
        for layer in self._layers:
            normed = self._normed(hidden)
            if isinstance(layer.mixer, ShortConvolution):
                layer.mixer.add(hidden, normed, inputs)
            else:
                attended = self._attend(layer.mixer, normed, rotations_M1D, plan)
                hidden.addmm_(attended, layer.mixer.out)
            if layer is self._layers[-1] and len(hidden) > len(slots_R):
                hidden = hidden.index_select(0, plan.last_R)
            gate, values = F.linear(self._normed(hidden), layer.gates).chunk(2, dim=1)
            hidden.addmm_(F.silu(gate).mul_(values), layer.down)
        return self._model.model.embedding_norm(hidden)

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        return self._model.lm_head(hidden_NH)

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """See `Decoder.fork`."""
        self._copy_pages(self._table.fork(source, targets))
        slots = torch.tensor(targets)
        for convolution in self._convolutions():
            convolution.fork(source, slots)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """See `Decoder.release`."""
        self._table.release(slot)
        for convolution in self._convolutions():
            convolution.release(slot)
        moved = self._table.compact()
        if moved is not None:
            self._copy_pages(moved)

    def _convolutions(self) -> list[ShortConvolution]:
        mixers = (layer.mixer for layer in self._layers)
        return [mixer for mixer in mixers if isinstance(mixer, ShortConvolution)]

    def _copy_pages(self, copies: PageCopies) -> None:
        for layer in self._layers:
            if isinstance(layer.mixer, _Attention):
                layer.mixer.pool.copy(copies)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Scaled to unit mean square; the norm's own weight is in the projection that follows."""
        mean = hidden.square().mean(-1, keepdim=True)
        return hidden * mean.add_(self._eps).rsqrt_()

    def _attend(
        self, mixer: _Attention, normed_MH: Tensor, rotations_M1D: Tensor, plan: StepPlan
    ) -> Tensor:
        heads, both, width = self._heads, self._heads + self._kv_heads, self._head_width
        qkv = F.linear(normed_MH, mixer.project).view(len(normed_MH), -1, width)
        qk = self._normed(qkv[:, :both]).mul_(mixer.qk_norm_ND)
        pairs = torch.view_as_complex(qk.view(*qk.shape[:2], width // 2, 2))
        rotated = torch.view_as_real(pairs.mul_(rotations_M1D)).view(qk.shape)
        kv = (rotated[:, heads:], qkv[:, both:])
        return mixer.pool.attend(rotated[:, :heads], kv, plan).flatten(1)

    def _rotations(self, tokens: int) -> Tensor:
        """[at least `tokens`, D / 2] complex."""
        if tokens > len(self._rotations_TD):
            positions = torch.arange(2 * tokens)[None]
            cos, sin = self._model.model.rotary_emb(torch.empty(0), position_ids=positions)
            half = self._head_width // 2
            self._rotations_TD = torch.complex(cos[0, :, :half], sin[0, :, :half])
        return self._rotations_TD

    def _taken(self, layer: Lfm2DecoderLayer) -> _Layer:
        block, norm_H = layer.feed_forward, layer.operator_norm.weight
        is_attention = layer.is_attention_layer
        return _Layer(
            mixer=self._attention(layer) if is_attention else ShortConvolution(layer.conv, norm_H),
            gates=torch.cat((block.w1.weight, block.w3.weight)) * layer.ffn_norm.weight,
            down=block.w2.weight.T,
        )

    def _attention(self, layer: Lfm2DecoderLayer) -> _Attention:
        attn, width = layer.self_attn, self._head_width
        q, k = (
            part.weight.view(-1, width, part.in_features)[:, self._interleaved].flatten(0, 1)
            for part in (attn.q_proj, attn.k_proj)
        )
        q_norm_D = attn.q_layernorm.weight[self._interleaved] * width**-0.5
        k_norm_D = attn.k_layernorm.weight[self._interleaved]
        norms_ND = (q_norm_D.expand(self._heads, width), k_norm_D.expand(self._kv_heads, width))
        return _Attention(
            project=torch.cat((q, k, attn.v_proj.weight)) * layer.operator_norm.weight,
            qk_norm_ND=torch.cat(norms_ND),
            out=attn.out_proj.weight.T,
        )
