"""How likely the policy of today finds what was once sampled."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.algorithms.masking import row_means
from espalier.records.trajectory import Trajectory
from espalier.training.distribution import ScoreRequest
from espalier.training.rl.dense_scoring import Layout, dense_scores
from espalier.training.rl.rows import Group, dense_rows
from espalier.training.scoring import Scorer


def perplexities(
    trajectories: Sequence[Trajectory],
    policy: Scorer,
    layout: Layout,
    request: ScoreRequest,
) -> list[float]:
    """exp(mean surprise of the action tokens) of each trajectory; 1 is known by heart."""
    group = Group(trajectories=tuple(trajectories))
    rows = dense_rows([group], with_observations=False)
    [logprobs_BT] = dense_scores(
        rows.sequences, lambda batch: [policy(batch, request).logprobs_N], layout
    )
    return (-row_means(logprobs_BT, rows.action_mask_BT)).exp().tolist()
