"""Every preset, with nothing of it changed: two updates as the stage wires them."""

import math

import pytest

from espalier.algorithms.presets import DEFAULT_PRESET, PRESETS
from espalier.config import Profile
from espalier.config.profile import override_tables
from espalier.records import NullTracker
from espalier.records.step_figures import step_figure
from tests.factories.tiny_training import tiny_run, write_inputs

SMALL = {
    "training.tasks_per_step": 8,
    "training.group_size": 3,
    "curriculum.screening_rollouts": 2,
}
"""Of a run of seconds, where the preset has no number of its own."""
QUICK = {"default", "spo", "starpo_s", "dpo"}
"""Presets that set most elsewhere."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.mark.parametrize(
    "preset",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in PRESETS],
)
def test_every_preset_as_shipped_makes_two_updates(inputs, tmp_path, preset):
    assert_two_updates(inputs, tmp_path, {"preset": preset})


def test_gdpo_weighs_the_terms_that_a_step_has(inputs, tmp_path):
    """`turns` is among the terms only in steps in which a turn was rewarded."""
    advantage = {"name": "gdpo", "weights": {"format": 0.5, "turns": 0.5}}
    assert_two_updates(inputs, tmp_path, {"advantage": advantage})


def assert_two_updates(inputs, work, algorithm):
    tables = {
        "episode": {"max_tokens": 64, "max_turn_tokens": 14},
        "curriculum": {"pass_rate_band": [0.01, 0.99]},
        "training": {"steps": 2, "evaluate_every": 2, "algorithm": algorithm},
    }
    own = PRESETS[algorithm.get("preset", DEFAULT_PRESET)].elsewhere
    for key in SMALL.keys() - own.keys():
        override_tables(tables, [(key, SMALL[key])])
    run = tiny_run(inputs, work, Profile.model_validate(tables))
    run.loop.run(NullTracker())
    assert len(run.loop.progress.history) == 2
    assert all(math.isfinite(value) for row in run.loop.progress.history for value in row.values())
    assert all("loss" in row for row in run.loop.progress.history), "the critic alone was trained"
    assert any(row["grad_norm"] > 0 for row in run.loop.progress.history)
    named = {name for row in run.loop.progress.history for name in row}
    assert {name for name in named if step_figure(name) is None} == set(), "what is it?"
