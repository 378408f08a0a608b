"""Advantages of outcome rules by hand, with settings that no upstream case uses.

trajectory      0    1    2      3    4      5
group           0    0    0      1    1      2
reward          4    1    1      0    2      3
action tokens   1    2    1      2    1      1
group mean      2                1           3
"""

from dataclasses import replace
from math import nan, sqrt

import pytest
import torch

from espalier.algorithms.advantages import (
    DrGrpo,
    Gdpo,
    Gpg,
    Grpo,
    GrpoLengthPenalty,
    GrpoPassK,
    MaxRl,
    Opo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
    Rloo,
    Spo,
)
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
        (DrGrpo(), [2, -1, -1, -1, 1, 3]),
        (DrGrpo(group_of_one="zero"), [2, -1, -1, -1, 1, 0]),
        # 6 trajectories, 5 rewards that are not 0: alpha is 6 / 5
        (Gpg(), [2.4, -1.2, -1.2, -1.2, 1.2, 3.6]),
        (Gpg(normalizer=4), [0.6, -0.3, -0.3, -0.3, 0.3, 0.9]),
        # times 3 / 2 in the group of three, times 2 in that of two
        (Rloo(), [3, -1.5, -1.5, -2, 2, 3]),
        (Rloo(reward_clip=(0.5, 3)), [2, -1, -1, -1.5, 1.5, 3]),
        (MaxRl(), [1, -0.5, -0.5, -1, 1, 0]),
        # baselines (4 + 2 + 1) / 4 tokens and (0 + 2) / 3 tokens
        (Opo(), [2.25, -0.75, -0.75, -2 / 3, 4 / 3, 3]),
        (GrpoPassK(scale="none"), [3, 0, 0, 0, 2, 0]),
        (GrpoPassK(std_eps=0.5), [3 / (sqrt(3) + 0.5), 0, 0, 0, 2 / (sqrt(2) + 0.5), 0]),
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
    assert advantages(Grpo(**settings)) == pytest.approx(expected)


def test_rloo_normalizes_over_trajectories_with_siblings():
    # 3, -1.5, -1.5, -2, 2: mean 0, squares 21.5
    deviation = sqrt(21.5 / 4) + 1e-4
    expected = [3 / deviation, -1.5 / deviation, -1.5 / deviation, -2 / deviation, 2 / deviation]
    assert advantages(Rloo(normalize=True)) == pytest.approx([*expected, 3])


def test_the_group_baseline_is_whitened_over_tokens():
    # tokens: 2, -1, -1, -1, -1, -1, 1, 3; mean 1 / 8, squares 19
    deviation = sqrt((19 - 8 / 64) / 7 + 1e-8)
    expected = [(c - 1 / 8) / deviation for c in (2, -1, -1, -1, 1, 3)]
    assert advantages(ReinforcePlusPlusBaseline()) == pytest.approx(expected)


def test_a_reward_on_an_observation_counts_only_where_asked():
    batch = batch_of()
    strayed = replace(batch, rewards_BT=batch.rewards_BT.clone())
    strayed.rewards_BT[1, 1] = 3.0
    assert advantages(DrGrpo(), strayed) == pytest.approx([2, -1, -1, -1, 1, 3])
    found = advantages(DrGrpo(rewards_counted="all_tokens"), strayed)
    assert found == pytest.approx([1, 1, -2, -1, 1, 3])


def test_an_unscored_trajectory_is_no_sibling():
    found = advantages(DrGrpo(), batch_of([4.0, 1.0, nan, 0.0, nan, 3.0]))
    assert found == pytest.approx([1.5, -1.5, 0, 0, 0, 3])


def test_each_length_has_its_own_penalty():
    batch = batch_of(
        total_tokens_B=torch.tensor([11, 6, 4, 3, 2, 9]),
        turns_BT=torch.tensor(
            [[0, -1, -1], [0, -1, 1], [-1, 0, -1], [0, 1, -1], [-1, -1, 0], [0, -1, -1]]
        ),
    )
    rule = GrpoLengthPenalty(output_weight=0.5, input_weight=0.3, turns_weight=0.1)
    # shares of the longest: outputs 1/2 1 1/2, inputs 10 4 3, turns 1/2 1 1/2
    prices = [0.25 + 0.3 + 0.05, 0.5 + 0.12 + 0.1, 0.25 + 0.09 + 0.05]
    # outputs 1 1/2, inputs 1 1, turns 1 1/2
    prices += [0.5 + 0.3 + 0.1, 0.25 + 0.3 + 0.05]
    shaped = [4 - 2 * prices[0], 1 - 2 * prices[1], 1 - 2 * prices[2], 0 - prices[3], 2 - prices[4]]
    first, second = sum(shaped[:3]) / 3, sum(shaped[3:]) / 2
    expected = [*(s - first for s in shaped[:3]), *(s - second for s in shaped[3:]), 0]
    assert advantages(rule, batch) == pytest.approx(expected)


def test_gdpo_weighs_terms_after_each_is_normalized():
    terms_BK = torch.tensor(
        [[4.0, 0.0], [1.0, 10.0], [1.0, nan], [0.0, 5.0], [2.0, 5.0], [3.0, 1.0]],
        dtype=torch.float64,
    )
    rule = Gdpo(weights={"form": 3.0}, std_eps=0.5)
    # the second term: 0 and 10 have mean 5 and deviation sqrt(50); equal and lone ones give 0
    step = 3 * 5 / (sqrt(50) + 0.5)
    totals = [2 / (sqrt(3) + 0.5) - step, -1 / (sqrt(3) + 0.5) + step, -1 / (sqrt(3) + 0.5)]
    totals += [-1 / (sqrt(2) + 0.5), 1 / (sqrt(2) + 0.5), 0]
    mean = sum(totals) / 6
    deviation = sqrt(sum((t - mean) ** 2 for t in totals) / 5) + 0.5
    expected = [(t - mean) / deviation for t in totals]
    named = {"reward_terms_BK": terms_BK, "reward_names": ("outcome", "form")}
    assert advantages(rule, batch_of(**named)) == pytest.approx(expected)


def test_remax_subtracts_the_greedy_reward():
    greedy_B = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    credit = ReMax().credit(batch_of(baseline_rewards_B=greedy_B))
    # the reward stands on the first token, so that a second one has nothing to come
    assert credit.advantages_BT[1].tolist() == [0.5, 0, -0.5]
    assert credit.advantages_BT[3].tolist() == [-1.0, -1.0, 0]
    assert credit.returns_BT[1].tolist() == [1.0, 0, 0]


def test_spo_compares_with_the_prediction_and_the_siblings():
    expected_B = torch.tensor([0.5, 0.5, 0.5, 1.0, 1.0, 0.0], dtype=torch.float64)
    found = advantages(Spo(prediction_weight=2.0), batch_of(expected_rewards_B=expected_B))
    # two attempts' worth of prediction and the others: (1 + 2) / 4, (1 + 5) / 4, (2 + 2) / 3 ...
    above = [4 - 3 / 4, 1 - 6 / 4, 1 - 6 / 4, 0 - 4 / 3, 2 - 2 / 3, 3 - 0]
    mean = sum(above) / 6
    deviation = sqrt(sum((one - mean) ** 2 for one in above) / 5)
    assert found == pytest.approx([(one - mean) / deviation for one in above], rel=1e-5)


def test_spo_gives_no_credit_where_all_rewards_are_equal():
    expected_B = torch.linspace(0, 1, 6, dtype=torch.float64)
    assert advantages(Spo(), batch_of([1.0] * 6, expected_rewards_B=expected_B)) == [0] * 6


@pytest.mark.parametrize(
    ("at_observations", "first"), [("carry", 0.5 * 6), ("reset", 0.0)], ids=["carry", "reset"]
)
def test_a_sum_is_carried_over_an_observation_or_reset(at_observations, first):
    rewards_BT = torch.zeros(6, 3, dtype=torch.float64)
    rewards_BT[1, 2], rewards_BT[3, 1] = 6.0, 4.0
    batch = replace(batch_of(), rewards_BT=rewards_BT)
    credit = ReinforcePlusPlus(gamma=0.5, at_observations=at_observations).credit(batch)
    assert credit.returns_BT[1].tolist() == [first, 0, 6.0]
    assert credit.returns_BT[3].tolist() == [2.0, 4.0, 0], "no observation lies between these"
