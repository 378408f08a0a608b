import re
from pathlib import Path

import pytest

from espalier.chain import Stage
from espalier.config import Profile
from espalier.records import DataError, ProfileError
from espalier.steps.profiles import (
    FORM_KEYS,
    form_values,
    named_profile,
    parsed_profile,
    pipelines_dir,
    profile_names,
    resolved_profile,
)
from espalier.steps.running import run_stage
from espalier.usage import UsageMeter


def test_every_profile_that_comes_with_the_library_parses():
    assert {"laptop", "smoke"} <= set(profile_names())
    for name in profile_names():
        assert named_profile(name).name == name


def test_a_checkout_uses_its_own_pipelines():
    assert (pipelines_dir() / "data_to_model.py").is_file()


def test_an_unknown_profile_name_is_answered_with_the_nearest_one():
    with pytest.raises(ProfileError, match="did you mean laptop"):
        named_profile("labtop")
    with pytest.raises(ProfileError, match=r"there are .*laptop"):
        named_profile("zzz")


def test_the_seed_of_the_form_replaces_that_of_the_profile():
    assert resolved_profile("smoke", seed=9, overrides="").seed == 9
    whole = Profile(seed=1).model_dump_json()
    assert resolved_profile(whole, seed=9, overrides="") == Profile(seed=9)


def test_overrides_are_separated_by_semicolons_or_lines():
    profile = resolved_profile("smoke", seed=0, overrides="training.steps=3;\nrollout.max_rows = 8")
    assert (profile.training.steps, profile.rollout.max_rows) == (3, 8)


FORM = {
    "knowledge_path": "/docs",
    "base_model": "/models/m",
    "demonstrations": 50,
    "heldout_questions": 70,
    "algorithm": "gspo",
    "training_steps": 7,
    "tasks_per_step": 6,
    "group_size": 10,
    "learning_rate": 2e-4,
}


def test_each_field_of_the_form_replaces_its_key():
    own = 'knowledge.source="folder"; knowledge.questions="/q.jsonl"; knowledge.max_cities=0'
    profile = resolved_profile("smoke", seed=0, overrides=own, form=FORM)
    assert set(FORM) == set(FORM_KEYS)
    training = profile.training
    assert (profile.knowledge.path, profile.policy.model) == (Path("/docs"), Path("/models/m"))
    assert (profile.synthesis.trajectories, profile.synthesis.heldout_tasks) == (50, 70)
    assert (training.algorithm.preset, training.steps) == ("gspo", 7)
    assert (training.tasks_per_step, training.group_size) == (6, 10)
    assert training.optimizer.learning_rate == 2e-4


def test_an_empty_field_leaves_the_profile_as_it_is():
    for empty in (None, ""):
        form = dict.fromkeys(FORM_KEYS, empty)
        resolved = resolved_profile("smoke", seed=0, overrides=empty, form=form)
        assert resolved == named_profile("smoke")


def test_fields_filled_with_the_profiles_own_values_change_nothing():
    for name in ("smoke", "laptop"):
        profile = named_profile(name)
        values = form_values(profile)
        assert resolved_profile(name, seed=0, overrides="", form=values) == profile
        whole = resolved_profile(profile.model_dump_json(), seed=0, overrides="", form=values)
        assert whole == profile


def test_a_field_counts_more_than_overrides():
    profile = resolved_profile(
        "smoke", seed=0, overrides="training.steps=3", form={"training_steps": 5}
    )
    assert profile.training.steps == 5


def test_a_whole_profile_takes_fields_and_overrides_too():
    whole = '{"name": "own", "training": {"steps": 9}}'
    profile = resolved_profile(
        whole, seed=1, overrides="threads=1", form={"algorithm": "gspo", "group_size": 6}
    )
    assert profile == Profile(
        name="own",
        seed=1,
        threads=1,
        training={"steps": 9, "group_size": 6, "algorithm": {"preset": "gspo"}},
    )


def test_a_refused_value_is_named_by_its_key():
    with pytest.raises(ProfileError, match=r"training\.group_size: Input should be greater"):
        resolved_profile("smoke", seed=0, overrides="", form={"group_size": 0})


def test_json_that_is_no_profile_is_refused():
    with pytest.raises(ProfileError, match="profile JSON: trainig"):
        parsed_profile('{"trainig": {}}')


def test_a_step_hands_the_profile_on_and_logs_its_cost(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged, given = {}, []
    monkeypatch.setattr(Stage, "run", lambda _stage, *inputs: given.extend(inputs))
    text = Profile(seed=4).model_dump_json()
    run_stage("validate", text, {"knowledge": "k"}, str(tmp_path / "out"), logged.__setitem__)
    profile, inputs, output, tracker = given
    assert (profile, inputs, output) == (
        Profile(seed=4),
        {"knowledge": Path("k")},
        tmp_path / "out",
    )
    tracker.note("listening")
    assert logged["peak_rss_mb"] > 1
    assert 0 <= logged["seconds"] < 60


def test_a_refusal_ends_the_step_with_its_message_alone(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged = {}

    def refuse(*_given):
        raise DataError("row 3 is empty")

    monkeypatch.setattr(Stage, "run", refuse)
    with pytest.raises(SystemExit, match=re.escape("error: validate: row 3 is empty")):
        run_stage("validate", Profile().model_dump_json(), {}, "out", logged.__setitem__)
    assert logged == {}


def test_peak_memory_covers_what_was_freed_again():
    meter = UsageMeter()
    before = meter.read().peak_rss_mb
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert meter.read().peak_rss_mb >= before + 40
