"""Log-probs of tokens under the policy, and under the distribution that they were sampled from.

An engine records log-probs of the distribution that it sampled from: after temperature, top-k and
top-p, renormalised, with exploration mixed in. The trainer scores under the same distribution, as
otherwise the importance ratio would be off by the truncated mass. Weights have changed since then,
so a sampled token may lie outside the current top-p; it always counts as inside.

Axes: R rows, T tokens of a row, N scored tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from espalier.rollout.engines.drawing import cumulative
from espalier.training.packing import PackedBatch
from espalier.training.prefix_tree import PrefixTree
from espalier.training.tree_forward import hidden_before_nodes

Batch = PackedBatch | PrefixTree
"""Sequences laid out for the forward pass, and the tokens that are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The distribution that tokens are scored under, and figures needed besides log-probs."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Probability mass that the kept tokens must reach; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens that are kept; 0 keeps all."""
    entropy: bool = False
    entropy_gradient: bool = False
    """Whether the entropy is a term of the loss and needs a gradient."""
    sum_pi_squared: bool = False

    @property
    def is_truncated(self) -> bool:
        """Whether top-k or top-p leaves out some tokens."""
        return self.top_k > 0 or self.top_p < 1


class Scores(NamedTuple):
    """Tensors of shape [N], in nats; those that were not requested are None."""

    logprobs_N: Tensor
    entropy_N: Tensor | None = None
    sum_pi_squared_N: Tensor | None = None
    """Sum over the vocabulary of squared probabilities."""


def token_scores(logits_NV: Tensor, targets_N: Tensor, request: ScoreRequest) -> Scores:
    """Score `targets_N` under the logits' distribution after `request`'s temperature and cuts."""
    all_logprobs_NV = _logprobs(logits_NV, targets_N, request)
    # a sum over one number and no squeeze: a sharded module must not return a view
    logprobs_N = all_logprobs_NV.gather(1, targets_N[:, None]).sum(dim=1)
    entropy_N = sum_pi_squared_N = None
    if request.entropy or request.entropy_gradient:
        with torch.set_grad_enabled(request.entropy_gradient and torch.is_grad_enabled()):
            surprise_NV = -all_logprobs_NV
            if request.is_truncated:  # 0 * inf would be NaN, in the gradient too
                surprise_NV = surprise_NV.masked_fill(surprise_NV == math.inf, 0.0)
            entropy_N = (all_logprobs_NV.exp() * surprise_NV).sum(dim=-1)
    if request.sum_pi_squared:
        with torch.no_grad():
            sum_pi_squared_N = (2 * all_logprobs_NV).exp().sum(dim=-1)
    return Scores(logprobs_N, entropy_N, sum_pi_squared_N)


def _logprobs(logits_NV: Tensor, targets_N: Tensor, request: ScoreRequest) -> Tensor:
    """Return [N, V] log-probs of all tokens, -inf outside the support."""
    # half precision has too few digits for a log-sum over a vocabulary
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_NV = logits_NV.to(exact)
    if request.temperature != 1:
        logits_NV = logits_NV / request.temperature
    if request.is_truncated:
        inside_NV = support_mask(logits_NV.detach(), top_p=request.top_p, top_k=request.top_k)
        inside_NV = inside_NV.scatter(1, targets_N[:, None], value=True)
        logits_NV = logits_NV.masked_fill(~inside_NV, -math.inf)
    return torch.log_softmax(logits_NV, dim=-1)


def concatenated(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of pieces."""

    def column(pieces: Sequence[Tensor | None]) -> Tensor | None:
        present = [piece for piece in pieces if piece is not None]
        return torch.cat(present) if present else None

    return Scores(
        torch.cat([part.logprobs_N for part in parts]),
        column([part.entropy_N for part in parts]),
        column([part.sum_pi_squared_N for part in parts]),
    )


def support_mask(logits_NV: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """Return [N, V] bool: tokens left by top-k, and then by top-p among those."""
    ordered_NV, order_NV = logits_NV.sort(dim=-1, descending=True)
    ranks_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    inside_NV = (ranks_V < (top_k or len(ranks_V))).expand(logits_NV.shape)
    if top_p < 1:
        probabilities_NV = ordered_NV.masked_fill(~inside_NV, -math.inf).softmax(dim=-1)
        before_NV = cumulative(probabilities_NV) - probabilities_NV
        inside_NV = inside_NV & (before_NV < top_p)
    return torch.zeros_like(inside_NV).scatter(1, order_NV, inside_NV)


LOGITS_AT_ONCE = 1 << 24
"""64 MiB of float32. With a vocabulary of 150k, 8k tokens would need 5 GB, several times over in
the backward pass. Beyond this bound logits are computed in pieces, and again in the backward
pass."""

PLAIN = ScoreRequest()


def score(model: PreTrainedModel, batch: Batch, request: ScoreRequest = PLAIN) -> Scores:
    """Score the batch's tokens (nats), with gradient where the caller has it enabled.

    The output projection runs only on the N scored positions: in a search episode most tokens are
    observations.
    """
    before_NH = hidden_before(model.base_model, batch)
    projection = model.get_output_embeddings()
    assert projection is not None, "a causal LM has an output projection"
    piece = max(1, LOGITS_AT_ONCE // projection.weight.shape[0])
    if len(before_NH) <= piece:
        return token_scores(projection(before_NH), batch.targets_N, request)
    if type(projection) is nn.Linear and projection.bias is None:
        weight_VH = projection.weight
        if not isinstance(weight_VH, DTensor):
            found = _PieceScores.apply(before_NH, weight_VH, batch.targets_N, request, piece)
            return Scores(*found)

    def scored(hidden_NH: Tensor, targets_N: Tensor) -> Scores:
        return token_scores(projection(hidden_NH), targets_N, request)

    pieces = zip(before_NH.split(piece), batch.targets_N.split(piece), strict=True)
    return concatenated([checkpoint(scored, *one, use_reentrant=False) for one in pieces])


class _PieceScores(torch.autograd.Function):
    """`token_scores` of a projection, in pieces, of which one at a time holds its logits.

    The gradient of a piece's logits is a formula, not recorded by autograd: with p the
    distribution, H its entropy, e the sampled token and g the gradients of log-prob and entropy,

        d logits = (g_logprob (e - p) - g_entropy p (log p + H)) / temperature
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 (autograd's own type says nothing)
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        request: ScoreRequest,
        piece: int,
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N)
        ctx.request, ctx.piece = request, piece
        ctx.format = _product_format(hidden_NH)
        pieces = zip(hidden_NH.split(piece), targets_N.split(piece), strict=True)
        parts = [
            token_scores(_logits(part_NH, weight_VH, ctx.format), targets, request)
            for part_NH, targets in pieces
        ]
        found = concatenated(parts)
        shown = found[2:] if request.entropy_gradient else found[1:]
        ctx.mark_non_differentiable(*(values for values in shown if values is not None))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator names none)
        ctx: Any,  # noqa: ANN401
        *gradients: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, targets_N = ctx.saved_tensors
        request = cast("ScoreRequest", ctx.request)
        by_logprob_N = gradients[0]
        by_entropy_N = gradients[1] if request.entropy_gradient else None
        grad_hidden_NH = torch.zeros_like(hidden_NH)
        grad_weight_VH = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden_NH), ctx.piece):
            part = slice(start, start + ctx.piece)
            grad_NV = _logits_gradient(
                _logits(hidden_NH[part], weight_VH, ctx.format),
                targets_N[part],
                None if by_logprob_N is None else by_logprob_N[part],
                None if by_entropy_N is None else by_entropy_N[part],
                request,
            ).to(ctx.format)
            grad_hidden_NH[part] = grad_NV @ weight_VH.to(ctx.format)
            if grad_weight_VH is not None:
                grad_weight_VH += grad_NV.T @ hidden_NH[part].to(ctx.format)
        return grad_hidden_NH, grad_weight_VH, None, None, None


def _product_format(hidden_NH: Tensor) -> torch.dtype:
    device = hidden_NH.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden_NH.dtype


def _logits(hidden_NH: Tensor, weight_VH: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return hidden_NH.to(dtype) @ weight_VH.to(dtype).T


def _logits_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    by_logprob_N: Tensor | None,
    by_entropy_N: Tensor | None,
    request: ScoreRequest,
) -> Tensor:
    """Return [N, V], the gradient of a piece's logits, which may be overwritten."""
    logprobs_NV = _logprobs(logits_NV, targets_N, request)
    p_NV = logprobs_NV.exp()
    at_target = (torch.arange(len(targets_N), device=targets_N.device), targets_N)
    if by_entropy_N is not None:
        # outside the support p is 0 and its logarithm infinite
        surprise_NV = logprobs_NV.masked_fill(p_NV == 0, 0.0)
        entropy_N1 = -(p_NV * surprise_NV).sum(dim=1, keepdim=True)
        grad_NV = p_NV * (surprise_NV + entropy_N1) * -by_entropy_N[:, None]
    else:
        grad_NV = torch.zeros_like(p_NV)
    if by_logprob_N is not None:
        grad_NV -= p_NV * by_logprob_N[:, None]
        grad_NV[at_target] += by_logprob_N
    return grad_NV / request.temperature


class Scorer(nn.Module):
    """A causal LM as a module that returns scores.

    FSDP gathers a sharded model's weights when the outermost module is called: this module.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, request: ScoreRequest) -> Scores:
        """Score the batch's tokens, as `score` does."""
        return score(self.model, batch, request)


def hidden_before(base_model: nn.Module, batch: Batch) -> Tensor:
    """Return [N, H]: the last hidden state at the position before each scored token."""
    if isinstance(batch, PrefixTree):
        return hidden_before_nodes(base_model, batch)
    hidden_RTH = base_model(
        input_ids=batch.token_ids_RT,
        position_ids=batch.position_ids_RT,
        attention_mask=_attention_masks(base_model, batch),
        use_cache=False,
    ).last_hidden_state
    return hidden_RTH[batch.scored_rows_N, batch.scored_columns_N - 1]


def _attention_masks(base_model: nn.Module, batch: PackedBatch) -> Tensor | dict[str, Tensor]:
    segments = batch.segment_ids_RT
    width = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    attends = (same & causal)[:, None]
    layer_types = getattr(base_model.config, "layer_types", None)
    if layer_types and "conv" in layer_types:
        return {"full_attention": attends, "conv": (segments > 0).to(torch.float32)}
    return attends
