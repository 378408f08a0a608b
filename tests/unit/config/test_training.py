import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import (
    Profile,
    SynthesisConfig,
    TemperatureSchedule,
    TrainingConfig,
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
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert parsed_profile(stated_json(profile)) == profile
