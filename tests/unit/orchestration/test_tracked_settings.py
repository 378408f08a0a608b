from espalier.chain import STAGES
from espalier.config import Profile
from espalier.steps.profiles import changed_settings, stage_settings


def test_runs_are_compared_by_what_their_profiles_changed():
    always = {"name", "seed", "environment.name", "knowledge.source"}
    assert changed_settings(Profile()).keys() == always
    found = changed_settings(Profile.model_validate({"training": {"steps": 7}}))
    assert (found["training.steps"], found.keys() - always) == (7, {"training.steps"})


def test_a_stage_has_its_changes_and_a_settings_digest():
    changed = Profile.model_validate({"training": {"steps": 7}, "evaluation": {"temperature": 0.5}})
    assert stage_settings(changed, "evaluate") == {
        "seed": 0,
        "environment.name": "search_qa",
        "evaluation.temperature": 0.5,
        "config_digest": STAGES["evaluate"].digest(changed),
    }
