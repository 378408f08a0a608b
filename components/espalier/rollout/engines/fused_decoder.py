"""A decoder for LFM2 and for the Llama family: few, large operations per step.

The arithmetic is that of transformers' models (`lockstep.decoder_for` compares both before this
decoder is used). It holds a second, rearranged copy of all layers' weights (`fused_layers.py`).

Axes: M tokens of a step, R rows, H width, N heads, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    Lfm2ForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from espalier.rollout.engines.accelerator import to_device
from espalier.rollout.engines.fused_layers import (
    AttentionWeights,
    ConvolutionInputs,
    LayerWeights,
    RevocableInputs,
    ShortConvolution,
    take_layers,
)
from espalier.rollout.engines.paged_attention import PageMoves, PagePool, plan_step
from espalier.rollout.engines.pages import Ints, PageCopies, PageTable

_FAMILY = (
    Lfm2ForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
_FIXED_ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles depend only on the position, not on the context's length."""


class FusedDecoder:
    """Decodes any model for which `is_fusible` holds."""

    rewinds = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device
        config = model.config
        base = cast("Any", model.base_model)
        self._final_norm = base.embedding_norm if hasattr(base, "embedding_norm") else base.norm
        self._eps = float(self._final_norm.variance_epsilon)
        self._embeddings_VH = cast("Tensor", base.embed_tokens.weight)
        self._head_VH = cast("Any", model.get_output_embeddings()).weight
        self._heads = config.num_attention_heads
        self._key_heads = config.num_key_value_heads
        self._head_width = _head_width(model)
        self._layers: list[LayerWeights] = []
        self._pools: list[PagePool] = []
        self._convolutions: list[ShortConvolution] = []
        self._table = PageTable()
        self._revocable: RevocableInputs | None = None
        self._rotations_TD = torch.empty(0, self._head_width // 2, dtype=torch.complex64)

    @torch.inference_mode()
    def begin(self) -> None:
        """Discard every context, and use the current weights from now on."""
        self._layers = take_layers(self._model)
        self._pools = [PagePool() for _ in self._layers]
        mixers = (layer.mixer for layer in self._layers)
        self._convolutions = [mixer for mixer in mixers if isinstance(mixer, ShortConvolution)]
        self._table = PageTable()

    def end(self) -> None:
        """Discard every context, and free their memory."""
        self._layers, self._pools, self._convolutions = [], [], []
        self._table = PageTable()

    @torch.inference_mode()
    def advance(
        self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints, lasts_R: Ints | None = None
    ) -> Tensor:
        """Append tokens to some of the contexts; the others do not change."""
        taps = self._convolutions[0].taps if self._convolutions else 1
        planned = (
            plan_step(self._table, slots_R, counts_R, lasts_R),
            ConvolutionInputs.plan(slots_R, counts_R, taps, lasts_R),
            torch.from_numpy(token_ids_M),
        )
        plan, inputs, ids_M = to_device(planned, self._device)
        self._revocable = inputs.revocable
        rotations_M1D = self._rotations(plan.longest).index_select(0, plan.positions_M)[:, None]
        hidden = F.embedding(ids_M, self._embeddings_VH)
        for layer, pool in zip(self._layers, self._pools, strict=True):
            normed = _scaled_to_unit_rms(hidden, self._eps)
            if isinstance(layer.mixer, ShortConvolution):
                layer.mixer.add(hidden, normed, inputs)
            else:
                qkv = self._project(layer.mixer, normed, rotations_M1D)
                attended = pool.attend(*qkv, plan)
                hidden.addmm_(attended.flatten(1), layer.mixer.out)
                if layer.mixer.out_bias is not None:
                    hidden += layer.mixer.out_bias
            if layer is self._layers[-1] and len(hidden) > len(plan.lasts):
                hidden = hidden.index_select(0, plan.lasts)
            gate, values = F.linear(_scaled_to_unit_rms(hidden, self._eps), layer.gates).chunk(
                2, dim=1
            )
            hidden.addmm_(F.silu(gate).mul_(values), layer.down)
        return self._final_norm(hidden)

    @torch.inference_mode()
    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        """Take back the last tokens of contexts that the last `advance` appended to."""
        self._table.rewind(slots_R, counts_R)
        if self._convolutions:
            assert self._revocable is not None, "tokens are taken back after they were appended"
            inputs = self._revocable.inputs_after(slots_R, counts_R)
            slots, places = to_device(inputs, self._device)
            for convolution in self._convolutions:
                convolution.rewind(slots, places)

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return [N, V] logits of the next token; the caller may overwrite them."""
        return F.linear(hidden_NH, self._head_VH)

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copy the context of `source` to unused slots."""
        self._copy_pages(self._table.fork(source, targets))
        slots = torch.tensor(targets, device=self._device)
        for convolution in self._convolutions:
            convolution.fork(source, slots, num_slots=max(targets) + 1)

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Discard the context of `slot`, which may then be used again."""
        self._table.release(slot)
        for convolution in self._convolutions:
            convolution.release(slot)
        moved = self._table.compact()
        if moved is not None:
            self._copy_pages(moved)

    def _copy_pages(self, copies: PageCopies) -> None:
        moves = PageMoves.on(self._device, copies)
        for layer, pool in zip(self._layers, self._pools, strict=True):
            if isinstance(layer.mixer, AttentionWeights):
                pool.copy(moves)

    def _project(
        self, mixer: AttentionWeights, normed_MH: Tensor, rotations_M1D: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, values: [M, N, D]; queries scaled, queries and keys rotated."""
        heads, both, width = self._heads, self._heads + self._key_heads, self._head_width
        qkv = F.linear(normed_MH, mixer.project, mixer.project_bias)
        qkv = qkv.view(len(normed_MH), -1, width)
        qk = qkv[:, :both]
        if mixer.qk_norm_ND is not None:
            qk = _scaled_to_unit_rms(qk, self._eps).mul_(mixer.qk_norm_ND)
        pairs = torch.view_as_complex(qk.view(*qk.shape[:2], width // 2, 2))
        rotated = torch.view_as_real(pairs.mul_(rotations_M1D)).view(qk.shape)
        return rotated[:, :heads], rotated[:, heads:], qkv[:, both:]

    def _rotations(self, tokens: int) -> Tensor:
        """Return [at least `tokens`, D / 2] complex rotations."""
        if tokens > len(self._rotations_TD):
            self._rotations_TD = _rotations(self._model, 2 * tokens)
        return self._rotations_TD


def is_fusible(model: PreTrainedModel) -> bool:
    """Whether `model` has a known architecture, SiLU gates and fully rotated heads.

    Other options of its configuration are not checked here: `lockstep.decoder_for` compares both
    decoders' logits.
    """
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    return (
        type(model) in _FAMILY
        and rope.get("rope_type") in _FIXED_ROTATIONS
        and getattr(config, "hidden_act", "silu") == "silu"
        and kinds <= {"full_attention", "conv"}
        and (getattr(config, "sliding_window", None) is None or hasattr(config, "layer_types"))
        and _rotations(model, 1).shape[1] * 2 == _head_width(model)
    )


def _head_width(model: PreTrainedModel) -> int:
    config = model.config
    width = getattr(config, "head_dim", None)
    return width or config.hidden_size // config.num_attention_heads


@torch.inference_mode()
def _rotations(model: PreTrainedModel, tokens: int) -> Tensor:
    rotary = cast("Any", model.base_model).rotary_emb
    device = model.device
    positions = torch.arange(tokens, device=device)[None]
    cos, sin = rotary(torch.empty(0, device=device), position_ids=positions)
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half])


def _scaled_to_unit_rms(hidden: Tensor, eps: float) -> Tensor:
    """Return the RMS norm without its weight, which is folded into the next projection."""
    length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
    return hidden * length.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
