"""Advantages of outcome rules by hand, with settings that no upstream case uses.

trajectory      0    1    2      3    4      5
group           0    0    0      1    1      2
reward          4    1    1      0    2      3
action tokens   1    2    1      2    1      1
group mean      2                1           3
"""

from math import nan, sqrt

import pytest
import torch

from espalier.algorithms import advantages as ways
from espalier.algorithms.batch import CreditBatch

REWARDS = [4.0, 1.0, 1.0, 0.0, 2.0, 3.0]
MASK_BT = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 0]]).bool()
GROUPS_B = torch.tensor([0, 0, 0, 1, 1, 2])


def batch_of(rewards=REWARDS, **fields):
    """Each reward stands on the first action token of its trajectory."""
    first_BT = MASK_BT & (MASK_BT.cumsum(dim=1) == 1)
    rewards_BT = torch.tensor(rewards, dtype=torch.float64)[:, None].where(first_BT, 0.0)
    return CreditBatch(rewards_BT=rewards_BT, action_mask_BT=MASK_BT, groups_B=GROUPS_B, **fields)


def advantages(rule, batch=None):
    """One number a trajectory, which all of its action tokens have."""
    found_BT = rule.credit(batch or batch_of()).advantages_BT
    found_B = found_BT.sum(dim=1) / MASK_BT.sum(dim=1)
    torch.testing.assert_close(found_BT, found_B[:, None] * MASK_BT)
    return found_B.tolist()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ways.DrGrpo(), [2, -1, -1, -1, 1, 3]),
        (ways.DrGrpo(group_of_one="zero"), [2, -1, -1, -1, 1, 0]),
        # 6 trajectories, 5 rewards that are not 0: alpha is 6 / 5
        (ways.Gpg(), [2.4, -1.2, -1.2, -1.2, 1.2, 3.6]),
        (ways.Gpg(normalizer=4), [0.6, -0.3, -0.3, -0.3, 0.3, 0.9]),
        # times 3 / 2 in the group of three, times 2 in that of two
        (ways.Rloo(), [3, -1.5, -1.5, -2, 2, 3]),
        (ways.Rloo(reward_clip=(0.5, 3)), [2, -1, -1, -1.5, 1.5, 3]),
        (ways.MaxRl(), [1, -0.5, -0.5, -1, 1, 0]),
        # baselines (4 + 2 + 1) / 4 tokens and (0 + 2) / 3 tokens
        (ways.Opo(), [2.25, -0.75, -0.75, -2 / 3, 4 / 3, 3]),
        (ways.GrpoPassK(scale="none"), [3, 0, 0, 0, 2, 0]),
        (ways.GrpoPassK(std_eps=0.5), [3 / (sqrt(3) + 0.5), 0, 0, 0, 2 / (sqrt(2) + 0.5), 0]),
    ],
    ids=repr,
)
def test_advantages_of_one_small_batch(rule, expected):
    assert advantages(rule) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "divisors"),
    [
        # deviations sqrt(6 / 2), sqrt(2 / 1), and 1 of a reward without siblings
        ({"std_eps": 0.5}, [sqrt(3) + 0.5, sqrt(2) + 0.5, 1.5]),
        ({"std_eps": 0.5, "std_ddof": 0}, [sqrt(2) + 0.5, 1.5, 1.5]),
        ({"std_eps": 0.5, "std_floor": 1.6}, [sqrt(3) + 0.5, 2.1, 1.5]),
        # of all six rewards, whose mean is 11 / 6 and squares sum to 31
        ({"std_eps": 0.5, "scale": "batch"}, [sqrt((31 - 121 / 6) / 5) + 0.5] * 3),
    ],
    ids=repr,
)
def test_grpo_divides_by_the_deviation_asked_for(settings, divisors):
    centred = [2, -1, -1, -1, 1, 3]
    expected = [c / divisors[group] for c, group in zip(centred, GROUPS_B.tolist(), strict=True)]
    assert advantages(ways.Grpo(**settings)) == pytest.approx(expected)


def test_rloo_normalizes_over_trajectories_with_siblings():
    # 3, -1.5, -1.5, -2, 2: mean 0, squares 21.5
    deviation = sqrt(21.5 / 4) + 1e-4
    expected = [3 / deviation, -1.5 / deviation, -1.5 / deviation, -2 / deviation, 2 / deviation]
    assert advantages(ways.Rloo(normalize=True)) == pytest.approx([*expected, 3])


def test_a_reward_on_an_observation_counts_only_where_asked():
    batch = batch_of()
    batch.rewards_BT[1, 1] = 3.0
    assert advantages(ways.DrGrpo(), batch) == pytest.approx([2, -1, -1, -1, 1, 3])
    found = advantages(ways.DrGrpo(rewards_counted="all_tokens"), batch)
    assert found == pytest.approx([1, 1, -2, -1, 1, 3])
    unscored = batch_of([4.0, 1.0, nan, 0.0, nan, 3.0])
    assert advantages(ways.DrGrpo(), unscored) == pytest.approx([1.5, -1.5, 0, 0, 0, 3])


def test_gdpo_weighs_terms_after_each_is_normalized():
    terms_BK = torch.tensor(
        [[4.0, 0.0], [1.0, 10.0], [1.0, nan], [0.0, 5.0], [2.0, 5.0], [3.0, 1.0]],
        dtype=torch.float64,
    )
    rule = ways.Gdpo(weights={"form": 3.0}, std_eps=0.5)
    # the second term: 0 and 10 have mean 5 and deviation sqrt(50); equal and lone ones give 0
    step = 3 * 5 / (sqrt(50) + 0.5)
    totals = [2 / (sqrt(3) + 0.5) - step, -1 / (sqrt(3) + 0.5) + step, -1 / (sqrt(3) + 0.5)]
    totals += [-1 / (sqrt(2) + 0.5), 1 / (sqrt(2) + 0.5), 0]
    mean = sum(totals) / 6
    deviation = sqrt(sum((t - mean) ** 2 for t in totals) / 5) + 0.5
    expected = [(t - mean) / deviation for t in totals]
    named = {"reward_terms_BK": terms_BK, "reward_names": ("outcome", "form")}
    assert advantages(rule, batch_of(**named)) == pytest.approx(expected)


def test_spo_compares_with_the_prediction_and_the_siblings():
    expected_B = torch.tensor([0.5, 0.5, 0.5, 1.0, 1.0, 0.0], dtype=torch.float64)
    found = advantages(ways.Spo(prediction_weight=2.0), batch_of(expected_rewards_B=expected_B))
    # two attempts' worth of prediction and the others: (1 + 2) / 4, (1 + 5) / 4, (2 + 2) / 3 ...
    above = [4 - 3 / 4, 1 - 6 / 4, 1 - 6 / 4, 0 - 4 / 3, 2 - 2 / 3, 3 - 0]
    mean = sum(above) / 6
    deviation = sqrt(sum((one - mean) ** 2 for one in above) / 5)
    assert found == pytest.approx([(one - mean) / deviation for one in above], rel=1e-5)
    # what all have in common is no credit, however wrong the predictions were
    assert advantages(ways.Spo(), batch_of([1.0] * 6, expected_rewards_B=expected_B)) == [0] * 6


def test_spo_gives_no_credit_where_all_rewards_are_equal():
    expected_B = torch.linspace(0, 1, 6, dtype=torch.float64)
    assert advantages(ways.Spo(), batch_of([1.0] * 6, expected_rewards_B=expected_B)) == [0] * 6


@pytest.mark.parametrize(("at_observations", "first"), [("carry", 0.5 * 6), ("reset", 0.0)])
def test_a_sum_is_carried_over_an_observation_or_reset(at_observations, first):
    batch = batch_of([0.0] * 6)
    batch.rewards_BT[1, 2], batch.rewards_BT[3, 1] = 6.0, 4.0
    credit = ways.ReinforcePlusPlus(gamma=0.5, at_observations=at_observations).credit(batch)
    assert credit.returns_BT[1].tolist() == [first, 0, 6.0]
    assert credit.returns_BT[3].tolist() == [2.0, 4.0, 0], "no observation lies between these"
