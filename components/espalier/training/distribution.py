"""The distribution that tokens were drawn from: temperature and truncation, the trainer's side.

An engine records log-probs of what it really sampled from: after temperature, top-k and top-p,
renormalised, and mixed where the kind of an action is drawn now and then. The trainer scores under
the same distribution, or the importance ratio would be off by the truncated mass. Weights have
moved since: a sampled token may lie outside of today's top-p, and always counts as inside.

Axes: N scored tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Under which distribution tokens are scored, and what is wanted besides their log-probs."""

    temperature: float = 1.0
    top_p: float = 1.0
    """Least mass that the kept most likely tokens have; 1 keeps all."""
    top_k: int = 0
    """Number of most likely tokens that are kept; 0 keeps all."""
    entropy: bool = False
    entropy_gradient: bool = False
    """Whether the entropy is a term of the loss, and not just a figure."""
    sum_pi_squared: bool = False

    @property
    def is_truncated(self) -> bool:
        """Whether some tokens cannot be drawn at all."""
        return self.top_k > 0 or self.top_p < 1


class Scores(NamedTuple):
    """[N] each, nats; what was not requested is None."""

    logprobs_N: Tensor
    entropy_N: Tensor | None = None
    sum_pi_squared_N: Tensor | None = None
    """Sum over the vocabulary of squared probabilities."""


def token_scores(logits_NV: Tensor, targets_N: Tensor, request: ScoreRequest) -> Scores:
    """Score `targets_N` under the distribution that `request` makes of the logits."""
    # half precision has too few digits for a log-sum over a vocabulary
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    logits_NV = logits_NV.to(exact) / request.temperature
    if request.is_truncated:
        inside_NV = inside_support(logits_NV.detach(), top_p=request.top_p, top_k=request.top_k)
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


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of pieces, one after the other."""

    def column(pieces: Sequence[Tensor | None]) -> Tensor | None:
        present = [piece for piece in pieces if piece is not None]
        return torch.cat(present) if present else None

    return Scores(
        torch.cat([part.logprobs_N for part in parts]),
        column([part.entropy_N for part in parts]),
        column([part.sum_pi_squared_N for part in parts]),
    )


def inside_support(logits_NV: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """[N, V] bool: the tokens that top-k, and then top-p among those, leave in the support."""
    ordered_NV, order_NV = logits_NV.sort(dim=-1, descending=True)
    ranks_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    inside_NV = (ranks_V < (top_k or len(ranks_V))).expand(logits_NV.shape)
    if top_p < 1:
        probabilities_NV = ordered_NV.masked_fill(~inside_NV, -math.inf).softmax(dim=-1)
        before_NV = probabilities_NV.cumsum(dim=-1) - probabilities_NV
        inside_NV = inside_NV & (before_NV < top_p)
    return torch.zeros_like(inside_NV).scatter(1, order_NV, inside_NV)
