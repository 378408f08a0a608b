"""A model's forward pass over the nodes of a prefix tree, with gradient.

The weights and the arithmetic are those of transformers' model, except that the queries of a branch
attend to the keys of its whole path. Where tokens interact only in plain attention (Llama, Qwen,
Mistral and similar models), the model itself is called with all nodes as one sequence, each at its
own position, and with an attention function that is registered with transformers here. LFM2's short
convolutions must read a node's ancestors, not the columns before it, so its layers are called one
by one.

Axes: M nodes, N predicting nodes, C branches, Q nodes of a branch, K nodes of a path; H width, A
query heads, G key heads, D head width, J kernel taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.lfm2.modeling_lfm2 import Lfm2Model, apply_rotary_pos_emb

from espalier.policy.plain_attention import (
    NotPlainAttentionError,
    has_plain_attention,
    require_plain_attention,
)
from espalier.training.packing import TrainingSequence
from espalier.training.prefix_tree import PrefixTree, prefix_tree_of

_IMPLEMENTATION = "espalier_tree"


def forwards_trees(model: PreTrainedModel) -> bool:
    """Return whether `hidden_before_nodes` gives the forward pass of `model`.

    A configuration does not show everything that layers do: layers written out here are compared
    with the model's own pass over a short text.
    """
    if isinstance(model.base_model, Lfm2Model):
        return True
    rates = (getattr(model.config, name, None) for name in ("attention_dropout", "attn_pdrop"))
    return has_plain_attention(model) and not any(rates) and _agrees(model)


@torch.no_grad()
def _agrees(model: PreTrainedModel) -> bool:
    ids = tuple(number % model.config.vocab_size for number in range(12))
    tree = prefix_tree_of([TrainingSequence(token_ids=ids, loss_mask=(0, *[1] * 11))])
    was_training = model.training
    model.eval()
    row = torch.tensor(ids, device=model.device)[None]
    expected_TH = model.base_model(input_ids=row, use_cache=False).last_hidden_state[0]
    try:
        found_NH = hidden_before_nodes(model.base_model, tree.to(model.device))
    except NotPlainAttentionError:
        return False
    finally:
        model.train(was_training)
    return torch.allclose(found_NH, expected_TH[:-1], rtol=1e-2, atol=1e-2)


def hidden_before_nodes(base_model: nn.Module, tree: PrefixTree) -> Tensor:
    """Return [N, H]: the last hidden state at the parent of each scored node.

    Args:
        base_model: base of a model for which `forwards_trees` holds. LFM2 must not be sharded, as
            its submodules are called one by one.
        tree: on the model's device.
    """
    if isinstance(base_model, Lfm2Model):
        return _lfm2_hidden(base_model, tree)
    model = cast("PreTrainedModel", base_model)
    if model.config._attn_implementation != _IMPLEMENTATION:
        AttentionInterface.register(_IMPLEMENTATION, _attend_tree)
        AttentionMaskInterface.register(_IMPLEMENTATION, sdpa_mask)
        model.set_attn_implementation(_IMPLEMENTATION)
    hidden_1MH = model(
        input_ids=tree.token_ids_M[None],
        position_ids=tree.depths_M[None],
        # a mask with four axes keeps transformers from making one
        attention_mask=tree.token_ids_M.new_zeros(1, 1, 1, 1),
        use_cache=False,
        prefix_tree=tree,
    ).last_hidden_state
    return hidden_1MH[0].index_select(0, tree.predicting_N)


# transformers calls it with a layer's module, and with whatever the model was called with
def _attend_tree(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    prefix_tree: PrefixTree | None = None,
    **asked: Any,  # noqa: ANN401
) -> tuple[Tensor, Tensor | None]:
    """Attend along the tree that the model was called with; without a tree, as torch does.

    Args:
        module: the attention layer.
        query: [1, A, M, D], already rotated.
        key: [1, G, M, D], already rotated.
        value: [1, G, M, D]
        mask: used only without a tree.
        prefix_tree: tree of the call.
        asked: the `scaling` of products, and unused options.

    Returns:
        [1, M, A, D], and no weights.

    Raises:
        NotPlainAttentionError: the layer needs more than causal attention.
    """
    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, mask, **asked)
    require_plain_attention(asked)
    parts_MXD = (part[0].transpose(0, 1) for part in (query, key, value))
    attended_MX = _attended(prefix_tree, *parts_MXD, scaling=asked["scaling"])
    return attended_MX.view(1, len(attended_MX), query.shape[1], -1), None


class _Places(NamedTuple):
    """What all layers need to know of the tree."""

    tree: PrefixTree
    ancestors_JM: Sequence[Tensor]
    """Ancestors for all taps of a convolution except the last, the nearest first."""
    rotations_MD: tuple[Tensor, Tensor]
    """Cosines and sines."""


def _lfm2_hidden(base_model: Lfm2Model, tree: PrefixTree) -> Tensor:
    model = cast("Any", base_model)
    hidden_MH = model.embed_tokens(tree.token_ids_M)
    cos_1MD, sin_1MD = model.rotary_emb(hidden_MH[None], position_ids=tree.depths_M[None])
    places = _Places(tree, tree.ancestors(model.config.conv_L_cache - 1), (cos_1MD[0], sin_1MD[0]))
    predicting_N = tree.predicting_N
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        # the last layer only needs the nodes that predict
        wanted = predicting_N if number == last else None
        if layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
            hidden_MH = checkpoint(_layer, layer, hidden_MH, places, wanted, use_reentrant=False)
        else:
            hidden_MH = _layer(layer, hidden_MH, places, wanted)
    return model.embedding_norm(hidden_MH)


# transformers types layers as modules
def _layer(layer: Any, hidden_MH: Tensor, places: _Places, wanted: Tensor | None) -> Tensor:  # noqa: ANN401
    normed_MH = layer.operator_norm(hidden_MH)
    if layer.is_attention_layer:
        mixed = _self_attended(layer.self_attn, normed_MH, places, wanted)
    else:
        mixed = _convolved(layer.conv, normed_MH, places, wanted)
    hidden = mixed + (hidden_MH if wanted is None else hidden_MH.index_select(0, wanted))
    return hidden + layer.feed_forward(layer.ffn_norm(hidden))


def _convolved(conv: Any, normed_MH: Tensor, places: _Places, wanted: Tensor | None) -> Tensor:  # noqa: ANN401
    gate_in_MH, gate_out_MH, values_MH = conv.in_proj(normed_MH).chunk(3, dim=1)
    inputs_MH = gate_in_MH * values_MH
    # row M stands for the missing ancestors of a context's first tokens
    line = torch.cat((inputs_MH, inputs_MH.new_zeros(1, inputs_MH.shape[1])))
    taps_JH = conv.conv.weight.squeeze(1).T
    mixed_MH = inputs_MH * taps_JH[-1]
    for back, ancestors_M in enumerate(places.ancestors_JM, start=1):
        mixed_MH = mixed_MH + line.index_select(0, ancestors_M) * taps_JH[-1 - back]
    if conv.conv.bias is not None:
        mixed_MH = mixed_MH + conv.conv.bias
    gated_MH = gate_out_MH * mixed_MH
    return conv.out_proj(gated_MH if wanted is None else gated_MH.index_select(0, wanted))


def _self_attended(
    attn: Any,  # noqa: ANN401
    normed_MH: Tensor,
    places: _Places,
    wanted: Tensor | None,
) -> Tensor:
    heads = (len(normed_MH), -1, attn.head_dim)
    queries_MAD = attn.q_layernorm(attn.q_proj(normed_MH).view(heads))
    keys_MGD = attn.k_layernorm(attn.k_proj(normed_MH).view(heads))
    values_MGD = attn.v_proj(normed_MH).view(heads)
    queries_MAD, keys_MGD = apply_rotary_pos_emb(queries_MAD, keys_MGD, *places.rotations_MD)
    attended = _attended(
        places.tree, queries_MAD, keys_MGD, values_MGD, scaling=attn.scaling, wanted=wanted
    )
    return attn.out_proj(attended)


def _attended(
    tree: PrefixTree,
    queries_MAD: Tensor,
    keys_MGD: Tensor,
    values_MGD: Tensor,
    *,
    scaling: float,
    wanted: Tensor | None = None,
) -> Tensor:
    """Return [M, A * D]: what each node reads on its path; with `wanted`, only for those nodes."""
    # keys and values in one tensor: one gather forward, and one scatter backward
    both_MXD = torch.cat((keys_MGD, values_MGD.to(keys_MGD.dtype)), dim=1)
    key_heads = keys_MGD.shape[1]
    group = queries_MAD.shape[1] // key_heads
    parts: list[Tensor] = []
    for queries_CQ, keys_CK, attends_C1QK in tree.branches:
        queries_CAQD = _gathered(queries_MAD, queries_CQ)
        keys_CGKD, values_CGKD = _gathered(both_MXD, keys_CK).split(key_heads, dim=1)
        # with a mask, torch's own grouping of heads has no fused kernel on a GPU
        if group > 1:
            keys_CGKD = keys_CGKD.repeat_interleave(group, dim=1)
            values_CGKD = values_CGKD.repeat_interleave(group, dim=1)
        attended_CAQD = F.scaled_dot_product_attention(
            queries_CAQD, keys_CGKD, values_CGKD, attn_mask=attends_C1QK, scale=scaling
        )
        parts.append(attended_CAQD.transpose(1, 2).flatten(0, 1).flatten(1))
    outputs = tree.outputs_M if wanted is None else tree.outputs_M[wanted]
    return torch.cat(parts).index_select(0, outputs)


def _gathered(values_MAD: Tensor, nodes_CX: Tensor) -> Tensor:
    """Return [C, A, X, D]: the values of some nodes."""
    # the backward pass of an embedding sums faster on a CPU than that of `index_select`
    picked = F.embedding(nodes_CX, values_MAD.flatten(1))
    return picked.view(*nodes_CX.shape, *values_MAD.shape[1:]).transpose(1, 2)
