"""Discounted rewards of turns, by hand: two trajectories of one group, the second of one turn."""

import pytest
import torch

from espalier.algorithms.advantages import TurnDiscounted
from espalier.algorithms.batch import CreditBatch

BATCH = CreditBatch(
    rewards_BT=torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 5.0, 9.0]]),
    action_mask_BT=torch.tensor([[True, True, False, True], [True, True, True, False]]),
    groups_B=torch.tensor([3, 3]),
    turns_BT=torch.tensor([[0, 0, -1, 1], [0, 0, 0, -1]]),
)


def test_returns_are_discounted_by_turn_not_by_token():
    returns_BT = TurnDiscounted(gamma=0.5).credit(BATCH).returns_BT
    assert returns_BT.tolist() == [[2.0, 2.0, 0.0, 2.0], [5.0, 5.0, 5.0, 0.0]]


def test_a_turn_is_compared_with_all_turns_of_its_group():
    rule = TurnDiscounted(gamma=0.5, scale="none")
    assert rule.credit(BATCH).advantages_BT.tolist() == [
        [-1.0, -1.0, 0.0, -1.0],
        [2.0, 2.0, 2.0, 0],
    ]


def test_or_with_the_turns_of_the_same_number_alone():
    rule = TurnDiscounted(gamma=0.5, scale="none", compared="same_turn")
    found = rule.credit(BATCH).advantages_BT.tolist()
    assert found == [[-1.5, -1.5, 0.0, 0.0], [1.5, 1.5, 1.5, 0.0]], "the second turn stands alone"


def test_the_deviation_of_what_is_compared_divides():
    advantages_BT = TurnDiscounted(gamma=0.5).credit(BATCH).advantages_BT
    # returns 2, 2 and 5: mean 3, deviation sqrt(3)
    assert advantages_BT[1, 0].item() == pytest.approx(2 / 3**0.5, abs=1e-5)
    assert advantages_BT[0, 0].item() == pytest.approx(-1 / 3**0.5, abs=1e-5)
