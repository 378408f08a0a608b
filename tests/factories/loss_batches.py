"""Batches of plain numbers for the loss rules, and what one backward pass gives."""

from dataclasses import replace

import torch

from espalier.algorithms.batch import LossBatch, Totals


def totals_of(mask_BT, *, max_tokens=None, pairs=0):
    """Sizes of a minibatch that is this one batch."""
    return Totals(
        tokens=float(mask_BT.sum()),
        sequences=float(mask_BT.any(dim=1).sum()),
        rows=float(len(mask_BT)),
        max_tokens=float(max_tokens or mask_BT.shape[1]),
        pairs=float(pairs),
    )


def loss_batch(policy_BT, proximal_BT, advantages_BT, mask_BT, **optional):
    """`totals` are those of the batch itself where they are not given."""
    optional.setdefault("totals", totals_of(mask_BT))
    return LossBatch(
        policy_logprobs_BT=policy_BT,
        proximal_logprobs_BT=proximal_BT,
        advantages_BT=advantages_BT,
        loss_mask_BT=mask_BT,
        **optional,
    )


def differentiate(compute, batch):
    """What `compute(batch)` returns, and the gradient of its loss to the policy's log-probs."""
    policy_BT = batch.policy_logprobs_BT.detach().clone().requires_grad_()
    result = compute(replace(batch, policy_logprobs_BT=policy_BT))
    (gradient_BT,) = torch.autograd.grad(result.loss, policy_BT, allow_unused=True)
    return result, gradient_BT
