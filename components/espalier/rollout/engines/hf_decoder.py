"""A decoder for any Hugging Face causal LM whose tokens interact only in full attention.

The model gets the step's tokens of all rows as one sequence, each with its own position. Everything
but attention works token by token, and attention is `paged_attention`, registered with transformers
as a custom implementation.

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

from espalier.policy.hardware import Hardware
from espalier.policy.plain_attention import require_plain_attention
from espalier.rollout.engines.accelerator import to_device
from espalier.rollout.engines.paged_attention import PageMoves, PagePool, StepPlan, plan_step
from espalier.rollout.engines.pages import Ints, PageCopies, PageTable

_IMPLEMENTATION = "espalier_paged"


class _AttentionStep:
    """The data of the current step that attention layers need."""

    def __init__(
        self, pools: dict[int, PagePool], plan: StepPlan, rounded: torch.dtype | None
    ) -> None:
        self.pools = pools
        self.plan = plan
        self.rounded = rounded
        """Number format to which queries, keys and values are rounded; None leaves them."""


class HfDecoder:
    """Decodes any model for which `has_plain_attention` holds."""

    rewinds = True

    def __init__(self, model: PreTrainedModel, autocast: torch.dtype | None = None) -> None:
        """Decode with the weights of `model`.

        Args:
            model: may be trained between rollouts.
            autocast: format of matrix products. Values are rounded where the trainer's autocast
                rounds them, so that both agree; attention is computed in float32. Between `begin`
                and `end` the projections are held in this format as well: converting them in each
                step takes longer than the step.
        """
        self._device = model.device
        self._autocast = autocast
        self._hardware = Hardware(model.device, autocast)
        AttentionInterface.register(_IMPLEMENTATION, _attend)
        # a second model with the same weight tensors: the trainer's keeps its own attention
        shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
        self._model = copy.deepcopy(model, dict(shared)).eval()
        self._model.set_attn_implementation(_IMPLEMENTATION)
        self._projections = _linear_pairs(model, self._model) if autocast else []
        self._table = PageTable()
        self._pools: dict[int, PagePool] = defaultdict(PagePool)

    def begin(self) -> None:
        """Discard every context, and use the current weights from now on.

        Without autocast the weights are read in place.
        """
        self.end()
        for trained, own in self._projections:
            weight = trained.weight.detach().to(self._autocast)
            own.weight = nn.Parameter(weight, requires_grad=False)

    def end(self) -> None:
        """Discard every context, and free their memory."""
        self._table = PageTable()
        self._pools.clear()
        for trained, own in self._projections:
            own.weight = trained.weight

    @torch.inference_mode()
    def advance(
        self, slots_R: Ints, counts_R: Ints, token_ids_M: Ints, lasts_R: Ints | None = None
    ) -> Tensor:
        """Append tokens to some of the contexts; the others do not change."""
        planned = (
            plan_step(self._table, slots_R, counts_R, lasts_R),
            torch.from_numpy(token_ids_M),
        )
        plan, ids_M = to_device(planned, self._device)
        with self._hardware.precision():
            output = self._model.base_model(
                input_ids=ids_M[None],
                position_ids=plan.positions_M[None],
                use_cache=False,
                paged_step=_AttentionStep(self._pools, plan, self._autocast),
            )
        return output.last_hidden_state[0].index_select(0, plan.lasts)

    def rewind(self, slots_R: Ints, counts_R: Ints) -> None:
        """Take back the last tokens of contexts that the last `advance` appended to."""
        self._table.rewind(slots_R, counts_R)

    @torch.inference_mode()
    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return [N, V] logits of the next token; the caller may overwrite them."""
        projection = self._model.get_output_embeddings()
        assert projection is not None, "a causal LM has an output projection"
        with self._hardware.precision():
            return projection(hidden_NH).float()

    @torch.inference_mode()
    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copy the context of `source` to unused slots."""
        self._copy_pages(self._table.fork(source, targets))

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        """Discard the context of `slot`, which may then be used again."""
        self._table.release(slot)
        moved = self._table.compact()
        if moved is not None:
            self._copy_pages(moved)

    def _copy_pages(self, copies: PageCopies) -> None:
        moves = PageMoves.on(self._device, copies)
        for pool in self._pools.values():
            pool.copy(moves)


def _linear_pairs(model: nn.Module, other: nn.Module) -> list[tuple[nn.Linear, nn.Linear]]:
    """The linear layers of two models of one architecture."""
    pairs = zip(model.modules(), other.modules(), strict=True)
    return [(a, b) for a, b in pairs if isinstance(a, nn.Linear) and isinstance(b, nn.Linear)]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **asked: object
) -> tuple[Tensor, None]:
    """Attend over one sequence of M tokens, with the signature of transformers' functions.

    Args:
        module: the attention layer.
        query: [1, H, M, D], already rotated.
        key: [1, K, M, D], already rotated.
        value: [1, K, M, D]
        mask: None, as for every custom implementation; the step's plan defines the mask.
        asked: the `scaling` of products, the `paged_step`, and unused options.

    Returns:
        [1, M, H, D], and no weights.

    Raises:
        NotPlainAttentionError: the layer needs more than causal attention.
    """
    del mask
    require_plain_attention(asked)
    step = cast("_AttentionStep", asked["paged_step"])
    pool = step.pools[cast("int", module.layer_idx)]
    if step.rounded is not None:
        query, key, value = (part.to(step.rounded).float() for part in (query, key, value))
    queries_MHD = (query[0] * cast("float", asked["scaling"])).transpose(0, 1).contiguous()
    keys_MKD, values_MKD = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if step.rounded is None:
        return pool.attend(queries_MHD, keys_MKD, values_MKD, step.plan)[None], None
    with torch.autocast(query.device.type, enabled=False):
        return pool.attend(queries_MHD, keys_MKD, values_MKD, step.plan)[None], None
