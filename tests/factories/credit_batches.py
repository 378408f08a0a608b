"""Random batches for the advantage rules: ragged groups, masks with holes, rows without tokens."""

import torch
from hypothesis import strategies as st

from espalier.algorithms.batch import CreditBatch

MAX_TOKENS = 7


@st.composite
def credit_batches(draw, *, min_group=1, equal_rewards=False):
    """Outcomes are quarters, so that sums of them are exact; the rest is noise.

    Args:
        min_group: the smallest group.
        equal_rewards: within each group.
    """
    sizes = draw(st.lists(st.integers(min_group, 4), min_size=1, max_size=4))
    groups_B = torch.tensor([p for p, size in enumerate(sizes) for _ in range(size)])
    quarters = st.integers(-4, 8).map(lambda quarter: quarter / 4)
    outcomes = [
        reward
        for size in sizes
        for reward in (
            [draw(quarters)] * size
            if equal_rewards
            else draw(st.lists(quarters, min_size=size, max_size=size))
        )
    ]
    rows = st.lists(st.booleans(), min_size=MAX_TOKENS, max_size=MAX_TOKENS)
    mask_BT = torch.tensor([draw(rows) for _ in outcomes])
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    order = torch.randperm(len(groups_B), generator=noise)
    return with_outcomes(torch.tensor(outcomes), mask_BT, groups_B, noise).rows(order)


def with_outcomes(outcomes_B, mask_BT, groups_B, noise):
    """Each outcome stands on the last action token; a hole in the mask begins a new turn."""
    last_BT = mask_BT & (mask_BT.flip(1).cumsum(dim=1).flip(1) == 1)
    begins_BT = mask_BT & ~mask_BT.roll(1, dims=1)
    begins_BT[:, 0] = mask_BT[:, 0]
    outcomes_B = outcomes_B.double()

    def noise_BT():
        return torch.randn(mask_BT.shape, generator=noise, dtype=torch.float64)

    return CreditBatch(
        rewards_BT=outcomes_B[:, None] * last_BT,
        action_mask_BT=mask_BT,
        groups_B=groups_B,
        turns_BT=(begins_BT.cumsum(dim=1) - 1).masked_fill(~mask_BT, -1),
        values_BT=noise_BT(),
        baseline_rewards_B=torch.randn(len(mask_BT), generator=noise, dtype=torch.float64),
        expected_rewards_B=torch.rand(len(mask_BT), generator=noise, dtype=torch.float64),
        behavior_logprobs_BT=-noise_BT().abs(),
        proximal_logprobs_BT=-noise_BT().abs(),
        sum_pi_squared_BT=noise_BT().sigmoid(),
        total_tokens_B=torch.full((len(mask_BT),), mask_BT.shape[1]),
        reward_terms_BK=torch.stack([outcomes_B, outcomes_B.square()], dim=1),
        reward_names=("outcome", "square"),
    )
