import math

import pytest
import torch

from espalier.training.parallel import Processes
from tests.integration.two_processes import ALGORITHMS, CASES, found_together, two_steps


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return found_together(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def alone():
    return {name: two_steps(name, Processes()) for name in ALGORITHMS}


@pytest.mark.parametrize(("name", "sharded"), CASES)
def test_two_processes_give_the_loss_and_the_weights_of_one(together, alone, name, sharded):
    figures, weights, _ = together["steps"][name, sharded]
    expected_figures, expected_weights, _ = alone[name]
    for found, expected in zip(figures, expected_figures, strict=True):
        assert found.keys() == expected.keys()
        for figure, value in expected.items():
            assert found[figure] == pytest.approx(value, rel=1e-9, abs=1e-12), figure
    assert weights.keys() == expected_weights.keys()
    for key, weight in expected_weights.items():
        torch.testing.assert_close(weights[key], weight, rtol=1e-9, atol=1e-12, msg=key)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sharded_optimizer_is_put_together_whole(together, alone, name):
    _, _, sharded = together["steps"][name, True]
    _, _, plain = alone[name]
    assert sharded.keys() == plain.keys()
    for number, state in plain.items():
        torch.testing.assert_close(sharded[number]["exp_avg"], state["exp_avg"])


def test_processes_that_play_apart_stay_one_policy(together):
    (history, weights), (other_history, other_weights) = together["loops"]
    assert len(history) == 3
    assert history == other_history
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_what_one_process_has_saved_all_resume_from(together):
    for (history, weights), (again, same) in zip(
        together["loops"], together["resumed"], strict=True
    ):
        assert history == again
        assert all(torch.equal(weights[name], same[name]) for name in weights)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_gradient_broken_in_one_process_is_skipped_in_all(together, sharded):
    (figures, weights), (other_figures, other_weights) = together["broken"][sharded]
    assert figures["skipped_updates"] == other_figures["skipped_updates"] == 1
    assert math.isfinite(figures["grad_norm"])
    assert all(weight.isfinite().all() for weight in weights.values())
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_processes_with_nothing_left_to_learn_stop_together(together):
    (history, _), (other_history, _) = together["idle"]
    assert [row["idle_steps"] for row in history] == [1, 2]
    assert history == other_history


def test_every_process_hears_all_and_the_first_is_heard_by_all(together):
    assert together["ranks"] == [0, 1]
    assert together["said"] == "by 0"
