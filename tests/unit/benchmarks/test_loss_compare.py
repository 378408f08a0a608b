"""The comparison behind `make loss-compare`: what counts as equal, and what is said of the rest."""

import math
import tomllib

import pyarrow as pa
import pytest

from espalier.config import load_profile
from tests.benchmarks.loss_compare import PROFILE, SideFailed, compare, flat_settings, respelled


def _history(**columns):
    steps = {"step": [1.0, 2.0], "loss": [0.5, 0.25], "grad_norm": [1.5, 1.25]}
    return pa.table(steps | columns)


def test_equal_histories_are_equal():
    comparison = compare(_history(), _history())

    assert comparison.is_equal
    assert (comparison.steps, comparison.with_gradient) == (2, 2)


def test_last_bit_of_a_loss_is_a_difference():
    other = math.nextafter(0.25, 1)

    comparison = compare(_history(), _history(loss=[0.5, other]))

    assert comparison.differences == ((2.0, "loss", "0.25", repr(other)),)


def test_first_differing_step_of_each_column_is_named():
    comparison = compare(_history(), _history(loss=[0.5, 9.0], grad_norm=[9.0, 8.0]))

    assert [(found.step, found.column) for found in comparison.differences] == [
        (1.0, "grad_norm"),
        (2.0, "loss"),
    ]


def test_missing_values_equal_missing_values_alone():
    silent = _history(grad_norm=[None, math.nan])

    assert compare(silent, silent).is_equal
    assert compare(silent, silent).with_gradient == 0
    assert not compare(silent, _history(grad_norm=[0.0, math.nan])).is_equal


def test_shorter_history_is_a_difference():
    comparison = compare(_history(), _history().slice(0, 1))

    assert comparison.differences == ((2, "rows", "2", "1"),)


def test_measured_times_and_ignored_columns_may_differ():
    base = _history(rollout_s=[1.0, 2.0], tokens_per_s=[10.0, 11.0], entropy=[1.0, 1.0])
    head = _history(rollout_s=[1.1, 2.0], tokens_per_s=[10.0, 12.0], entropy=[2.0, 1.0])

    assert [found.column for found in compare(base, head).differences] == ["entropy"]
    assert compare(base, head, ignore=["entropy"]).is_equal


def test_column_of_one_side_decides_nothing():
    comparison = compare(_history(), _history(token_drift=[0.0, 0.0]))

    assert comparison.is_equal
    assert comparison.one_sided == ("token_drift",)


def test_whole_numbers_may_be_stored_as_integers():
    assert compare(_history(), _history(step=[1, 2])).is_equal


def test_settings_reach_the_command_line_unchanged():
    settings = flat_settings(PROFILE, ["seed=7"])

    profile = load_profile(PROFILE, ["seed=7"])
    assert load_profile(PROFILE, [f"{key}={value}" for key, value in settings.items()]) == (profile)
    assert tomllib.loads(PROFILE.read_text())["training"]["steps"] == profile.training.steps == 20


def test_refused_key_is_tried_under_its_other_name():
    settings = {"seed": "0", "training.device": "cpu", "training.reward.format": "0.1"}

    assert respelled(settings, {"training.device", "training.reward"}, "v1") == {
        "seed": "0",
        "hardware.device": "cpu",
        "reward.format": "0.1",
    }
    assert respelled({"hardware.device": "cpu"}, {"hardware"}, "v1") == {"training.device": "cpu"}


def test_refused_key_without_another_name_is_an_error():
    with pytest.raises(SideFailed, match=r"v1: its profiles have no key seed"):
        respelled({"seed": "0"}, {"seed"}, "v1")
