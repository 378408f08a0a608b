import json
import logging
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from espalier.chain import Stage
from espalier.config import Profile
from espalier.records import (
    DataError,
    Patience,
    ProfileError,
    Provenance,
    RefusedRowsError,
    RegistryAwayError,
    RegistryError,
    publishing,
)
from espalier.registry import tracking
from espalier.steps import running
from espalier.steps.profiles import (
    FORM_KEYS,
    named_profile,
    parsed_profile,
    pipelines_dir,
    profile_names,
    resolved_profile,
    settings_markdown,
    stated_json,
)
from espalier.steps.running import ShownOutputs, require_valid, run_stage


def test_every_profile_that_comes_with_the_library_parses():
    assert {"laptop", "smoke"} <= set(profile_names())
    for name in profile_names():
        assert named_profile(name).name == name


def test_a_checkout_uses_its_own_pipelines():
    assert (pipelines_dir() / "data_to_model.py").is_file()


def test_an_unknown_profile_name_is_answered_with_the_nearest_one():
    with pytest.raises(ProfileError, match="mean laptop"):
        named_profile("labtop")
    with pytest.raises(ProfileError, match=r"zzz.*laptop"):
        named_profile("zzz")


def test_the_seed_of_the_form_replaces_that_of_the_profile():
    assert resolved_profile("smoke", seed=9, overrides="").seed == 9
    whole = Profile(seed=1).model_dump_json()
    assert resolved_profile(whole, seed=9, overrides="") == Profile(seed=9)


@pytest.mark.parametrize("name", profile_names())
def test_what_a_profile_states_is_short_and_makes_it_again(name):
    profile = resolved_profile(name, seed=3, overrides="training.algorithm.preset=dapo")
    stated = stated_json(profile)
    assert parsed_profile(stated) == profile
    assert len(stated) < len(profile.model_dump_json()) / 3


def test_overrides_are_separated_by_semicolons_or_lines():
    profile = resolved_profile("smoke", seed=0, overrides="training.steps=3;\nrollout.max_rows = 8")
    assert (profile.training.steps, profile.rollout.max_rows) == (3, 8)


FORM = {
    "knowledge_path": "/docs",
    "base_model": "/models/m",
    "demonstrations": "50",
    "heldout_questions": "70",
    "algorithm": "gspo",
    "training_steps": " 7",
    "tasks_per_step": "6",
    "group_size": "10",
    "learning_rate": "2e-4",
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
    form = dict.fromkeys(FORM_KEYS, "")
    assert resolved_profile("smoke", seed=0, overrides="", form=form) == named_profile("smoke")


def test_text_for_a_number_is_named_by_its_key():
    with pytest.raises(ProfileError, match=r"training\.steps"):
        resolved_profile("smoke", seed=0, overrides="", form={"training_steps": "many"})


def test_what_a_run_has_is_told_a_line_a_key():
    own = 'knowledge.source="folder"; knowledge.questions="/q"; knowledge.max_cities=0; '
    own += 'knowledge.path="/a|b`c"; training.steps=3'
    lines = settings_markdown(resolved_profile("smoke", seed=4, overrides=own)).splitlines()
    said = dict(line.strip().split(" = ", 1) for line in lines if line.startswith("    "))
    assert (said["seed"], said["training.steps"]) == ("4", "3")
    assert said["knowledge.path"] == '"/a|b`c"'
    assert said["synthesis.chain_weights"] == "[0.7, 0.3, 0.0, 0.0]"
    assert "kubernetes.retries" not in said, "it is the default"


def test_a_field_counts_more_than_overrides():
    profile = resolved_profile(
        "smoke", seed=0, overrides="training.steps=3", form={"training_steps": "5"}
    )
    assert profile.training.steps == 5


def test_a_whole_profile_takes_fields_and_overrides_too():
    whole = '{"name": "own", "training": {"steps": 9}}'
    profile = resolved_profile(
        whole, seed=1, overrides="threads=1", form={"algorithm": "gspo", "group_size": "6"}
    )
    assert profile == Profile(
        name="own",
        seed=1,
        threads=1,
        training={"steps": 9, "group_size": 6, "algorithm": {"preset": "gspo"}},
    )


def test_a_refused_value_is_named_by_its_key():
    with pytest.raises(ProfileError, match=r"training\.group_size"):
        resolved_profile("smoke", seed=0, overrides="", form={"group_size": "0"})


def test_json_that_is_no_profile_is_refused():
    with pytest.raises(ProfileError, match="trainig"):
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
    with pytest.raises(SystemExit, match=r"^error: validate: row 3"):
        run_stage("validate", Profile().model_dump_json(), {}, "out", logged.__setitem__)
    assert logged == {}


@pytest.fixture
def refused(monkeypatch, tmp_path):
    """Validation refuses every row, as the stage does: with a report beside the output."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    report = tmp_path / "validation_failed"
    origin = Provenance(producer="validate", config_digest="c", seed=0, inputs={})
    failing = {
        "name": "splits_are_known", "weight": "critical", "success": False, "failing_rows": 1,
        "examples": ["t1"], "reason": "r", "problem": "", "observed": ["nowhere"],
        "arguments": {"column": "split"},
    }  # fmt: skip
    with publishing(report, origin) as draft:
        suites = {"tasks": {"rows": 1, "dropped": 0, "expectations": [failing]}}
        described = {"verdict": "stopped", "faults": FAULTS, "accepted": {}, "suites": suites}
        (draft.path / "validation.json").write_text(json.dumps(described))
        (draft.path / "validation.html").write_text("<p>why</p>")

    def refuse(*_given):
        raise RefusedRowsError("validation stopped the run", faults=FAULTS, report=report)

    monkeypatch.setattr(Stage, "run", refuse)
    return tmp_path


FAULTS = ["tasks: expectation splits_are_known failed on column split (r): found nowhere in t1"]


def shown_in(folder):
    paths = {name: str(folder / name) for name in ("page", "summary", "verdict")}
    return ShownOutputs(**paths)


def test_refused_rows_are_shown_and_judged_by_the_next_step(refused, capsys):
    logged = {}
    shown = shown_in(refused)
    profile = Profile().model_dump_json()
    run_stage("validate", profile, {}, str(refused / "out"), logged.__setitem__, shown)
    assert logged["seconds"] >= 0
    assert Path(shown.page).read_text() == "<p>why</p>"
    assert "## Validation: stopped" in Path(shown.summary).read_text()
    assert "next step" in capsys.readouterr().err
    verdict = Path(shown.verdict).read_text()
    with pytest.raises(SystemExit) as ended:
        require_valid(verdict, "s3://bucket/run/page")
    message = ended.value.code
    assert message.startswith("error: validate: ")
    assert FAULTS[0] in message
    assert "Report: s3://bucket/run/page." in message


def test_refused_rows_end_a_step_that_hands_no_verdict_on(refused):
    shown = replace(shown_in(refused), verdict=None)
    profile = Profile().model_dump_json()
    with pytest.raises(SystemExit, match="error: validate: "):
        run_stage("validate", profile, {}, str(refused / "out"), print, shown)
    assert not (refused / "page").exists()


def test_sound_rows_let_the_next_step_pass():
    require_valid("[]", "s3://bucket/run/page")


def test_a_verdict_names_a_bounded_number_of_faults(tmp_path, refused, monkeypatch):
    many = [f"fault {n}" for n in range(30)]

    def refuse(*_given):
        raise RefusedRowsError("stopped", faults=many, report=tmp_path / "validation_failed")

    monkeypatch.setattr(Stage, "run", refuse)
    shown = shown_in(tmp_path)
    run_stage("validate", Profile().model_dump_json(), {}, str(tmp_path / "out"), print, shown)
    told = json.loads(Path(shown.verdict).read_text())
    assert (told[-2], "10" in told[-1]) == ("fault 19", True)


def test_other_libraries_keep_to_warnings(monkeypatch, tmp_path, caplog):
    """KFP's executor sets the root logger to INFO, and with it every library."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    caplog.set_level(logging.INFO)

    def run(*_given):
        logging.getLogger("great_expectations.core").info("Skipping registering function")
        logging.getLogger("great_expectations.core").warning("a column is missing")

    monkeypatch.setattr(Stage, "run", run)
    run_stage("ingest", Profile().model_dump_json(), {}, str(tmp_path / "out"), print)
    assert [record.message for record in caplog.records] == ["a column is missing"]


def test_a_step_waits_for_mlflow_and_says_so(monkeypatch, tmp_path, capsys):
    pauses, tries = [], []
    monkeypatch.setattr(running, "Patience", partial(Patience, sleep=pauses.append))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(Stage, "run", lambda *_given: None)

    def open_stage(*_given):
        tries.append(1)
        if len(tries) < 3:
            raise RegistryAwayError("MLflow at http://127.0.0.1:9 does not answer.")
        raise RegistryError("no such experiment")

    monkeypatch.setattr(tracking, "_opened_stage", open_stage)
    with pytest.raises(SystemExit, match=r"error: train: .*experiment"):
        run_stage("train", Profile().model_dump_json(), {}, str(tmp_path / "out"), print)
    assert pauses == [5.0, 10.0]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("train")
    assert "5 s" in lines[0]


# in a process of its own: of one with gigabytes the kernel may take more pages than the block has
ALLOCATE_AND_FREE = """
from espalier.usage import UsageMeter

meter = UsageMeter()
before = meter.read().peak_rss_mb
block = bytearray(256 << 20)
block[::4096] = b"x" * len(block[::4096])
del block
print(meter.read().peak_rss_mb - before)
"""


def test_peak_memory_covers_what_was_freed_again():
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE_AND_FREE], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) >= 200
