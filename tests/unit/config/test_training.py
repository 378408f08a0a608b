import pytest

from espalier.config import Profile, SynthesisConfig, TemperatureSchedule, TrainingConfig
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


@pytest.mark.parametrize(
    ("section", "trajectories"),
    [({}, 1000), ({"train_tasks": 40}, 40), ({"train_tasks": 40, "trajectories": 7}, 7)],
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
        ({"knowledge": OWN, "environment": MIXTURE}, 0.6, "kinds"),
    ],
)
def test_rl_has_all_kinds_and_over_own_knowledge_other_names(tables, share, draw):
    profile = Profile.model_validate(tables)
    assert profile.renamed_training_share == share
    assert profile.curriculum.draw == draw
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert parsed_profile(stated_json(profile)) == profile
