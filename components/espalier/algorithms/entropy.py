"""Log-probs and entropy from logits, and the entropy bonus.

Axes: B trajectories, T token columns, V vocabulary. Computed in the type of the logits: raise
bfloat16 to float32 first. All in nats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.algorithms.aggregation import Aggregation, aggregate
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


def token_logprobs(logits_BTV: Tensor, token_ids_BT: Tensor, *, temperature: float) -> Tensor:
    """[B, T] log-prob of each token under the softmax of logits / temperature.

    The temperature of the sampler belongs here: without it the ratio to the sampler is off.
    """
    chosen_BT = logits_BTV.gather(-1, token_ids_BT.unsqueeze(-1)).squeeze(-1)
    return chosen_BT / temperature - (logits_BTV / temperature).logsumexp(dim=-1)


def token_entropy(logits_BTV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """[B, T] entropy of each distribution; tokens with logit -inf are allowed and add nothing."""
    logprobs_BTV = (logits_BTV / temperature).log_softmax(dim=-1)
    surprise_BTV = logprobs_BTV.masked_fill(logprobs_BTV.isneginf(), 0.0)
    return -(logprobs_BTV.exp() * surprise_BTV).sum(dim=-1)


def entropy_bonus(batch: LossBatch, aggregation: Aggregation, *, coefficient: float) -> PolicyLoss:
    """The minibatch share of -`coefficient` * entropy (A3C, Mnih et al. 2016, arXiv:1602.01783).

    `entropy` is the share of the mean over tokens.
    """
    assert batch.entropy_BT is not None
    mask_BT = batch.loss_mask_BT
    loss = -coefficient * aggregate(aggregation, batch.entropy_BT, mask_BT, batch.totals)
    share = kept(batch.entropy_BT.detach(), mask_BT).sum() / batch.totals.tokens
    return PolicyLoss(loss, {"entropy": share})
