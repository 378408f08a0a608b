from pathlib import Path

from espalier.chain import STAGES
from espalier.config import Profile
from espalier.orchestration.runs import run_description
from espalier.steps.profiles import changed_settings, stage_settings


def test_a_run_is_compared_by_what_its_profile_changed():
    profile = Profile.model_validate(
        {"name": "mine", "training": {"steps": 7}, "environment": {"name": "python_math"}}
    )
    found = changed_settings(profile)
    assert found["training.steps"] == 7
    assert found["environment.name"] == "python_math"
    assert "training.group_size" not in found
    assert (found["name"], found["seed"]) == ("mine", 0)


def test_the_default_profile_has_few_settings_to_show():
    assert changed_settings(Profile()).keys() == {
        "name", "seed", "environment.name", "knowledge.source",
    }  # fmt: skip


def test_a_stage_has_its_changes_and_a_settings_digest():
    changed = Profile.model_validate({"training": {"steps": 7}, "evaluation": {"temperature": 0.5}})
    assert stage_settings(changed, "evaluate") == {
        "seed": 0,
        "environment.name": "search_qa",
        "evaluation.temperature": 0.5,
        "config_digest": STAGES["evaluate"].digest(changed),
    }


def test_a_run_without_knowledge_is_described_without_it():
    profile = Profile.model_validate({"environment": {"name": "python_math"}})
    assert run_description(profile, Path("runs/x")).startswith(
        "Profile `unnamed`, seed 0: python_math, into `runs/x`."
    )


def test_a_finished_run_is_described_by_its_headline_figures():
    figures = {"em": 0.276, "n": 1000}
    summary = {
        "eval": {
            "untrained": None,
            "warm_start": figures,
            "trained": figures | {"em": 0.642},
            "gain": {"em": 0.366, "ci95": [0.335, 0.399]},
        },
        "registry": {"name": "espalier-search-agent", "version": 3},
    }
    said = run_description(Profile(name="laptop"), Path("runs/demo"), summary).split("\n\n")
    assert said[0].startswith("Profile `laptop`, seed 0: search_qa over `geonames`, into ")
    assert said[1] == (
        "**Held-out EM 27.6 -> 64.2 %**, gain +36.6 points [+33.5, +39.9] on 1,000 questions."
    )
    assert "espalier-search-agent/3" in said[2]
