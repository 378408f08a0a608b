import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import (
    OptimizerConfig,
    Profile,
    SynthesisConfig,
    TemperatureSchedule,
    TrainingConfig,
    read_saved_profile,
)
from espalier.steps.profiles import parsed_profile, stated_json


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("constant", [1.2, 1.2, 1.2, 1.2, 1.2]),
        ("linear", [1.2, 1.0, 0.8, 0.6, 0.4]),
        ("cosine", [1.2, 1.0828427, 0.8, 0.5171573, 0.4]),
    ],
)
def test_the_temperature_of_every_step_by_hand(shape, expected):
    config = TrainingConfig(
        steps=5, temperature=1.2, temperature_schedule=TemperatureSchedule(shape=shape, final=0.4)
    )
    assert [config.temperature_at(step) for step in range(5)] == pytest.approx(expected)


@given(
    shape=st.sampled_from(["linear", "cosine"]),
    start=st.floats(0.1, 3),
    final=st.floats(0.1, 3),
    steps=st.integers(1, 50),
)
def test_the_temperature_moves_one_way_to_its_end(shape, start, final, steps):
    schedule = TemperatureSchedule(shape=shape, final=final)
    found = [schedule.at(start, step, steps) for step in range(steps)]
    assert found[0] == pytest.approx(start)
    assert steps == 1 or found[-1] == pytest.approx(final)
    ordered = sorted(found, reverse=start > final)
    assert found == pytest.approx(ordered)


def test_one_setting_of_the_optimizer_leaves_the_others():
    asked = TrainingConfig.model_validate({"optimizer": {"learning_rate": 1e-4}}).optimizer
    untouched = TrainingConfig().optimizer
    assert asked.learning_rate == 1e-4
    assert asked.model_copy(update={"learning_rate": untouched.learning_rate}) == untouched


@pytest.mark.parametrize("preset", ["ppo", "spo"])
def test_a_group_of_one_is_enough_with_some_baseline(preset):
    config = TrainingConfig.model_validate(
        {"group_size": 1, "minibatches": 1, "algorithm": {"preset": preset}}
    )
    assert config.group_size == 1


def test_more_attempts_than_a_group_has_are_refused():
    material = {"name": "max_variance", "keep": 8}
    with pytest.raises(ValidationError, match=r"material\.keep=8.*=4"):
        TrainingConfig.model_validate({"group_size": 4, "algorithm": {"material": material}})
    config = TrainingConfig.model_validate({"algorithm": {"material": material}})
    assert config.algorithm.material.keep == 8


@pytest.mark.parametrize(
    ("policy", "warm_start", "kind", "rate"),
    [
        ({}, {}, "muon", 1.5e-3),
        ({}, {"steps": 9}, "muon", 1.5e-3),
        ({}, {"optimizer": {}}, "adamw", 1e-3),
        ({}, {"optimizer": {"learning_rate": 2e-3}}, "adamw", 2e-3),
        ({"model": "/models/small"}, {}, "adamw", 1e-3),
    ],
)
def test_muon_teaches_the_embedded_policy_by_default(policy, warm_start, kind, rate):
    found = Profile.model_validate({"policy": policy, "warm_start": warm_start}).warm_start
    assert found.optimizer == OptimizerConfig(kind=kind, learning_rate=rate)


@pytest.mark.parametrize(
    ("section", "trajectories"),
    [
        ({}, 1000),
        ({"train_tasks": 5000}, 1000),
        ({"train_tasks": 40}, 40),
        ({"train_tasks": 40, "trajectories": 7}, 7),
    ],
)
def test_there_are_no_more_demonstrations_than_tasks(section, trajectories):
    assert SynthesisConfig.model_validate(section).trajectories == trajectories


OWN = {"source": "folder", "path": "x"}
MIXTURE = {
    "name": "mixture",
    "members": [{"environment": {"name": "search_qa"}}, {"environment": {"name": "shop"}}],
}


@pytest.mark.parametrize(
    ("tables", "share", "draw"),
    [
        ({}, 0.0, "kinds"),
        ({"knowledge": OWN}, 0.6, "kinds"),
        ({"knowledge": OWN | {"triples": "t.jsonl"}}, 1.0, "kinds"),
        ({"knowledge": OWN, "training": {"renamed_share": 0.3}}, 0.3, "kinds"),
        ({"knowledge": OWN, "curriculum": {"draw": "band"}}, 0.6, "band"),
        ({"knowledge": OWN, "environment": MIXTURE}, 0.6, "kinds"),
    ],
)
def test_rl_has_all_kinds_and_over_own_knowledge_other_names(tables, share, draw):
    profile = Profile.model_validate(tables)
    assert profile.renamed_training_share == share
    assert profile.curriculum.draw == draw
    assert read_saved_profile(profile.model_dump_json()) == profile
    assert parsed_profile(stated_json(profile)) == profile


@pytest.mark.parametrize("sections", [{}, {"knowledge": OWN}])
def test_a_run_of_before_goes_on_drawing_as_it_did(sections):
    tables = json.loads(Profile.model_validate(sections).model_dump_json())
    del tables["curriculum"]["draw"]
    assert read_saved_profile(json.dumps(tables)).curriculum.draw == "band"
