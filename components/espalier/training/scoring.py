"""Log-probs of tokens under the policy, and under the distribution that they were sampled from.

An engine records log-probs of the distribution that it sampled from: after temperature, top-k and
top-p, renormalised, with exploration mixed in. The trainer scores under the same distribution: the
importance ratio would be off by the truncated mass otherwise. Weights have changed since then, so a
sampled token may lie outside of the current top-p; it always counts as inside.

Axes: R rows, T tokens of a row, N scored tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from espalier.rollout.engines.drawing import cumulative
from espalier.training.packing import PackedBatch
from espalier.training.prefix_tree import PrefixTree
from espalier.training.tree_forward import hidden_before_nodes

Batch = PackedBatch | PrefixTree
"""Sequences laid out to be forwarded, and the tokens of them that are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """The distribution that tokens are scored under, and figures wanted besides log-probs."""

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
    """[N] each, nats; what was not requested is None."""

    logprobs_N: Tensor
    entropy_N: Tensor | None = None
    sum_pi_squared_N: Tensor | None = None
    """Sum over the vocabulary of squared probabilities."""


def token_scores(logits_NV: Tensor, targets_N: Tensor, request: ScoreRequest) -> Scores:
    """Score `targets_N` under the logits' distribution after `request`'s temperature and cuts."""
    # half precision has too few digits for a log-sum over a vocabulary
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_NV = logits_NV.to(exact) / request.temperature
    if request.is_truncated:
        inside_NV = support_mask(logits_NV.detach(), top_p=request.top_p, top_k=request.top_k)
        inside_NV = inside_NV.scatter(1, targets_N[:, None], value=True)
        logits_NV = logits_NV.masked_fill(~inside_NV, -math.inf)
    all_logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
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
    """[N, V] bool: the tokens that top-k, and then top-p among those, leave in the support."""
    ordered_NV, order_NV = logits_NV.sort(dim=-1, descending=True)
    ranks_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    inside_NV = (ranks_V < (top_k or len(ranks_V))).expand(logits_NV.shape)
    if top_p < 1:
        probabilities_NV = ordered_NV.masked_fill(~inside_NV, -math.inf).softmax(dim=-1)
        before_NV = cumulative(probabilities_NV) - probabilities_NV
        inside_NV = inside_NV & (before_NV < top_p)
    return torch.zeros_like(inside_NV).scatter(1, order_NV, inside_NV)


LOGITS_AT_ONCE = 1 << 26
"""256 MiB of float32. With a vocabulary of 150k, 8k tokens would need 5 GB, several times over in
the backward pass. Beyond this bound logits are computed in pieces, and again in backward."""

PLAIN = ScoreRequest()


def score(model: PreTrainedModel, batch: Batch, request: ScoreRequest = PLAIN) -> Scores:
    """Score the batch's tokens (nats), with gradient where the caller has it enabled.

    The output projection runs only on the N scored positions: in a search episode most tokens are
    observations.
    """
    before_NH = hidden_before(model.base_model, batch)
    projection = model.get_output_embeddings()
    assert projection is not None, "a causal LM has an output projection"

    def scored(hidden_NH: Tensor, targets_N: Tensor) -> Scores:
        return token_scores(projection(hidden_NH), targets_N, request)

    piece = max(1, LOGITS_AT_ONCE // projection.weight.shape[0])
    if len(before_NH) <= piece:
        return scored(before_NH, batch.targets_N)
    parts: list[Scores] = [
        checkpoint(scored, hidden_NH, targets_N, use_reentrant=False)
        for hidden_NH, targets_N in zip(
            before_NH.split(piece), batch.targets_N.split(piece), strict=True
        )
    ]
    return concatenated(parts)


class Scorer(nn.Module):
    """A causal LM as a module that returns scores.

    FSDP gathers a sharded model's weights when the outermost module is called: this module.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, request: ScoreRequest) -> Scores:
        """See `score`."""
        return score(self.model, batch, request)


def hidden_before(base_model: nn.Module, batch: Batch) -> Tensor:
    """[N, H]: the last hidden state at the position before each scored token."""
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
