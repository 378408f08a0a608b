"""What a filter of groups is given: rewards, or the advantages that they come to."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.filters import GroupFilter
from espalier.training.rl.rows import Group, dense_rows


def numbers_of(
    groups: Sequence[Group], rule: GroupFilter, algorithm: Algorithm
) -> list[list[float]]:
    """One number a trajectory of each group."""
    if rule.reads == "rewards" or not groups:
        return [[t.total_reward for t in group.trajectories] for group in groups]
    rows = dense_rows(groups, with_observations=False)
    assert algorithm.advantage is not None, "a profile without one is refused this filter"
    credit = algorithm.advantage.credit(
        CreditBatch(
            rewards_BT=rows.rewards_BT,
            action_mask_BT=rows.action_mask_BT,
            groups_B=rows.groups_B,
            turns_BT=rows.turns_BT,
            baseline_rewards_B=rows.baseline_rewards_B,
            total_tokens_B=rows.total_tokens_B,
            reward_terms_BK=rows.reward_terms_BK,
        )
    )
    # the largest in size of its tokens: a trajectory is judged by the most that it teaches
    places_B1 = credit.advantages_BT.abs().argmax(dim=1, keepdim=True)
    strongest = credit.advantages_BT.gather(1, places_B1).squeeze(1).tolist()
    numbers = iter(strongest)
    return [[next(numbers) for _ in group.trajectories] for group in groups]
