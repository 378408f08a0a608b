"""A decoder over any Hugging Face causal LM whose tokens meet in full attention alone.

The model reads the step's tokens of all rows as one line with their own positions; everything but
attention treats tokens one by one, and attention is `paged_attention`, registered with transformers
as an implementation of its own.

Axes: M tokens of a step, R rows, H query heads, K key heads, D head width.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from espalier.rollout.engines.paged_attention import PagePool
from espalier.rollout.engines.pages import Ints, PageCopies, PageTable
from espalier.rollout.engines.step_plan import StepPlan, plan_step

_IMPLEMENTATION = "espalier_paged"


_MORE_THAN_PLAIN = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments by which a layer asks for a window, capped logits, a sink, or relative positions."""


class _NotPlainAttentionError(Exception):
    """A layer asks for something that `paged_attention` does not compute."""


class _Step:
    """What attention layers need of the step that they are part of."""

    def __init__(self, pools: dict[int, PagePool], plan: StepPlan) -> None:
        self.pools = pools
        self.plan = plan


class HfDecoder:
    """Decodes any model for which `is_pageable` holds."""

    def __init__(self, model: PreTrainedModel) -> None:
        AttentionInterface.register(_IMPLEMENTATION, _attend)
        # a twin that shares the weights: the trainer may own the model, with attention of its own
        shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
        self._model = copy.deepcopy(model, dict(shared)).eval()
        self._model.set_attn_implementation(_IMPLEMENTATION)
        self._table = PageTable()
        self._pools: dict[int, PagePool] = defaultdict(PagePool)

    def begin(self) -> None:
        """See `Decoder.begin`; the weights are read in place."""
        self.end()

    def end(self) -> None:
        """See `Decoder.end`."""
        self._table = PageTable()
        self._pools.clear()

    @torch.inference_mode()
    def advance(self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints) -> Tensor:
        """See `Decoder.advance`."""
        plan = plan_step(self._table, slots_R, counts_R)
        output = self._model.base_model(
            input_ids=torch.from_numpy(token_ids_M)[None],
            position_ids=plan.positions_M[None],
            use_cache=False,
            paged_step=_Step(self._pools, plan),
        )
        return output.last_hidden_state[0].index_select(0, plan.last_R)

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        projection = self._model.get_output_embeddings()
        assert projection is not None, "a causal LM has an output projection"
        return projection(hidden_NH)

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """See `Decoder.fork`."""
        self._copy_pages(self._table.fork(source, targets))

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """See `Decoder.release`."""
        self._table.release(slot)
        moved = self._table.compact()
        if moved is not None:
            self._copy_pages(moved)

    def _copy_pages(self, copies: PageCopies) -> None:
        for pool in self._pools.values():
            pool.copy(copies)


def is_pageable(model: PreTrainedModel) -> bool:
    """Whether tokens of `model` meet in causal attention over all earlier tokens, and only there.

    Windows, states and whatever else an architecture may keep are told by its config where it
    names them, and by a short sequence where it does not: both decodings must agree on it.
    """
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    has_window = not kinds and getattr(config, "sliding_window", None) is not None
    attends = getattr(model, "_supports_attention_backend", False)
    if not attends or has_window or not kinds <= {"full_attention"}:
        return False
    try:
        return _agrees(model)
    except _NotPlainAttentionError:
        return False


@torch.inference_mode()
def _agrees(model: PreTrainedModel) -> bool:
    token_ids = torch.arange(12) % model.config.get_text_config().vocab_size
    decoder = HfDecoder(model)
    decoder.begin()
    slots = torch.zeros(1, dtype=torch.int64).numpy()
    for part in (token_ids[:7], token_ids[7:11], token_ids[11:]):
        hidden = decoder.advance(slots, slots + len(part), part.numpy())
    was_training = model.training
    expected = model.eval()(input_ids=token_ids[None], use_cache=False).logits[0, -1]
    model.train(was_training)
    return torch.allclose(decoder.logits(hidden)[0], expected, rtol=1e-3, atol=1e-3)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **asked: object
) -> tuple[Tensor, None]:
    """One line of M tokens, by the signature of transformers' attention functions.

    Args:
        module: the attention layer.
        query: [1, H, M, D], already rotated.
        key: [1, K, M, D], already rotated.
        value: [1, K, M, D]
        mask: none is made for an implementation of one's own; the step says who sees what.
        asked: the `scaling` of products, the `paged_step`, and what other implementations heed.

    Returns:
        [1, M, H, D], and no weights.

    Raises:
        _NotPlainAttentionError: the layer asks for more than causal attention.
    """
    del mask
    more = [name for name in _MORE_THAN_PLAIN if asked.get(name) is not None]
    if more:
        raise _NotPlainAttentionError(", ".join(more))
    step = cast("_Step", asked["paged_step"])
    pool = step.pools[cast("int", module.layer_idx)]
    kv_2MKD = (key[0].transpose(0, 1), value[0].transpose(0, 1))
    queries_MHD = (query[0] * cast("float", asked["scaling"])).transpose(0, 1).contiguous()
    return pool.attend(queries_MHD, kv_2MKD, step.plan)[None], None
