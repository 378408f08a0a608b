import re
from pathlib import Path

import pytest

from espalier.chain import Stage
from espalier.config import Profile
from espalier.records import DataError, ProfileError
from espalier.steps.pipeline_files import pipelines_dir, profile_names
from espalier.steps.profiles import named_profile, parsed_profile, resolved_profile
from espalier.steps.running import run_stage
from espalier.steps.usage import UsageMeter


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


def test_overrides_of_a_whole_profile_are_refused():
    with pytest.raises(ProfileError, match="change the values there"):
        resolved_profile(Profile().model_dump_json(), seed=0, overrides="training.steps=3")


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
