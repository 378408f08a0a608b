"""Engine against trainer: log-probs of the same tokens under the same weights, on every step.

They differ by the rounding of two implementations. More than that is a fault: weights that were not
published, a temperature or truncation that one side does not know of, tokens that were not sampled.

Axes: B trajectories, T token columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from espalier.algorithms.off_policy import CorrectionBatch, mismatch_metrics
from espalier.rollout.engines.engine import KindChoice
from espalier.training.rl.rows import Rows
from espalier.training.rl.step import Step


def agreement(
    rows: Rows,
    trainer_logprobs_BT: Tensor,
    *,
    scored: Sequence[int],
    step: Step,
) -> dict[str, float]:
    """Figures over the fresh trajectories; empty where there are none.

    Args:
        rows: of the step.
        trainer_logprobs_BT: [B, T] under the weights of `version`, nats.
        scored: rows that the trainer scored before it changed a weight.
        step: says of which version those weights are; older trajectories differ for a better
            reason.

    Returns:
        `mismatch_kl` (nats a token, k3), and the mean and largest `logprob_gap` (nats).
    """
    fresh = [row for row in scored if int(rows.versions_B[row]) == step.number]
    compared_BT, trainer_BT = rows.action_mask_BT, trainer_logprobs_BT
    if step.kind_choice is not None:
        opens_BT = _opens_action(rows, step.kind_choice)
        if step.request.is_truncated:
            # drawn from outside the support, or inside by chance: the trainer cannot tell
            compared_BT = compared_BT & ~opens_BT
        trainer_BT = _mixed(rows, trainer_BT, step.kind_choice).where(opens_BT, trainer_BT)
    sampled_BT = compared_BT[fresh]
    if not bool(sampled_BT.any()):
        return {}
    found = mismatch_metrics(
        CorrectionBatch(
            # in float32 the k3 of a gap of 1e-4 is lost in rounding
            trainer_logprobs_BT=trainer_BT[fresh].double(),
            behavior_logprobs_BT=rows.behavior_logprobs_BT[fresh].double(),
            action_mask_BT=sampled_BT,
        )
    )
    names = ("mismatch_kl", "logprob_gap_mean", "logprob_gap_max")
    return {name: float(found[name]) for name in names}


def _token_ids(rows: Rows) -> Tensor:
    ids_BT = torch.zeros(rows.action_mask_BT.shape, dtype=torch.long)
    for row, sequence in enumerate(rows.sequences):
        ids_BT[row, : len(sequence.token_ids)] = torch.tensor(sequence.token_ids)
    return ids_BT


def _opens_action(rows: Rows, choice: KindChoice) -> Tensor:
    """[B, T] bool: tokens that were drawn from the mixture."""
    sampled_BT = rows.action_mask_BT & rows.action_mask_BT.roll(1, dims=1)
    return sampled_BT & (_token_ids(rows).roll(1, dims=1) == choice.after_id)


def _mixed(rows: Rows, logprobs_BT: Tensor, choice: KindChoice) -> Tensor:
    """[B, T]: log-probs of the mixture that the kinds of actions are drawn from."""
    is_kind_BT = torch.isin(_token_ids(rows), torch.tensor(choice.kind_ids))
    uniform_BT = is_kind_BT / len(choice.kind_ids)
    return ((1 - choice.epsilon) * logprobs_BT.exp() + choice.epsilon * uniform_BT).log()


def complaint(figures: dict[str, float], *, step: int, limit: float) -> str | None:
    """One line for whoever watches, where engine and trainer disagree by more than `limit`."""
    mismatch = figures.get("mismatch_kl", 0.0)
    if mismatch <= limit:
        return None
    return (
        f"warning: step {step}: engine and trainer disagree by {mismatch:.2g} nats a token (at "
        f"most {figures['logprob_gap_max']:.2g}), over training.max_mismatch_kl={limit:g}; set "
        'training.precision = "float32", or training.algorithm.proximal = "recomputed" with an '
        "off_policy rule"
    )
