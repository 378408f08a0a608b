"""LFM2's forward pass over the nodes of a prefix tree, with gradient.

Same weights and same arithmetic as transformers' model, but for two things: a short convolution
reads a node's ancestors and not the columns before it, and the queries of a branch attend to the
keys of its whole path. Norms, projections and feed-forward blocks are the model's own modules.

Axes: M nodes, N predicting nodes, C branches, Q nodes of a branch, K nodes of a path; H width, A
heads, D head width, J kernel taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.models.lfm2.modeling_lfm2 import Lfm2Model, apply_rotary_pos_emb

from espalier.training.prefix_tree import PrefixTree


def forwards_trees(model: PreTrainedModel) -> bool:
    """Whether `hidden_before_nodes` is the forward pass of `model`."""
    return isinstance(model.base_model, Lfm2Model)


class _Places(NamedTuple):
    """What all layers need to know of the tree."""

    tree: PrefixTree
    ancestors_JM: Sequence[Tensor]
    """For all taps of a convolution but the last, the nearest first."""
    rotations_MD: tuple[Tensor, Tensor]
    """Cosines and sines."""


def hidden_before_nodes(base_model: nn.Module, tree: PrefixTree) -> Tensor:
    """[N, H]: the last hidden state at the parent of each scored node.

    Args:
        base_model: of a model for which `forwards_trees` holds; not sharded, because its submodules
            are called one by one.
        tree: on the model's device.
    """
    model = cast("Any", base_model)
    hidden_MH = model.embed_tokens(tree.token_ids_M)
    cos_1MD, sin_1MD = model.rotary_emb(hidden_MH[None], position_ids=tree.depths_M[None])
    places = _Places(tree, tree.ancestors(model.config.conv_L_cache - 1), (cos_1MD[0], sin_1MD[0]))
    predicting_N = tree.predicting_N
    last = len(model.layers) - 1
    for number, layer in enumerate(model.layers):
        # of the last layer, only what predicts is needed
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
        mixed = _attended(layer.self_attn, normed_MH, places, wanted)
    else:
        mixed = _convolved(layer.conv, normed_MH, places, wanted)
    hidden = mixed + (hidden_MH if wanted is None else hidden_MH.index_select(0, wanted))
    return hidden + layer.feed_forward(layer.ffn_norm(hidden))


def _convolved(conv: Any, normed_MH: Tensor, places: _Places, wanted: Tensor | None) -> Tensor:  # noqa: ANN401
    gate_in_MH, gate_out_MH, values_MH = conv.in_proj(normed_MH).chunk(3, dim=1)
    inputs_MH = gate_in_MH * values_MH
    # the row behind the last node is what a context's first token finds before itself
    line = torch.cat((inputs_MH, inputs_MH.new_zeros(1, inputs_MH.shape[1])))
    taps_JH = conv.conv.weight.squeeze(1).T
    mixed_MH = inputs_MH * taps_JH[-1]
    for back, ancestors_M in enumerate(places.ancestors_JM, start=1):
        mixed_MH = mixed_MH + line.index_select(0, ancestors_M) * taps_JH[-1 - back]
    if conv.conv.bias is not None:
        mixed_MH = mixed_MH + conv.conv.bias
    gated_MH = gate_out_MH * mixed_MH
    return conv.out_proj(gated_MH if wanted is None else gated_MH.index_select(0, wanted))


def _attended(attn: Any, normed_MH: Tensor, places: _Places, wanted: Tensor | None) -> Tensor:  # noqa: ANN401
    heads = (len(normed_MH), -1, attn.head_dim)
    queries_MAD = attn.q_layernorm(attn.q_proj(normed_MH).view(heads))
    keys_MAD = attn.k_layernorm(attn.k_proj(normed_MH).view(heads))
    values_MAD = attn.v_proj(normed_MH).view(heads)
    queries_MAD, keys_MAD = apply_rotary_pos_emb(queries_MAD, keys_MAD, *places.rotations_MD)
    # keys and values in one tensor: one gather forward, and one scatter backward
    both_MAD = torch.cat((keys_MAD, values_MAD.to(keys_MAD.dtype)), dim=1)
    key_heads = keys_MAD.shape[1]
    parts: list[Tensor] = []
    for queries_CQ, keys_CK, attends_C1QK in places.tree.branches:
        queries_CAQD = _gathered(queries_MAD, queries_CQ)
        keys_CAKD, values_CAKD = _gathered(both_MAD, keys_CK).split(key_heads, dim=1)
        # torch's own grouping of heads has, beside a mask, no fused kernel on a GPU
        if attn.num_key_value_groups > 1:
            keys_CAKD = keys_CAKD.repeat_interleave(attn.num_key_value_groups, dim=1)
            values_CAKD = values_CAKD.repeat_interleave(attn.num_key_value_groups, dim=1)
        attended_CAQD = F.scaled_dot_product_attention(
            queries_CAQD, keys_CAKD, values_CAKD, attn_mask=attends_C1QK, scale=attn.scaling
        )
        parts.append(attended_CAQD.transpose(1, 2).flatten(0, 1).flatten(1))
    outputs = places.tree.outputs_M
    if wanted is not None:
        outputs = outputs[wanted]
    return attn.out_proj(torch.cat(parts).index_select(0, outputs))


def _gathered(values_MAD: Tensor, nodes_CX: Tensor) -> Tensor:
    """[C, A, X, D]: the values of some nodes."""
    # the backward pass of an embedding sums faster on a CPU than that of `index_select`
    picked = F.embedding(nodes_CX, values_MAD.flatten(1))
    return picked.view(*nodes_CX.shape, *values_MAD.shape[1:]).transpose(1, 2)
