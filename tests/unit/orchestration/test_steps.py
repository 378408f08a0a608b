import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from espalier.chain import Stage
from espalier.config import Profile
from espalier.records import (
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
    profile_names,
    resolved_profile,
    stated_json,
)
from espalier.steps.running import ShownOutputs, require_valid, run_stage


@pytest.mark.parametrize("name", profile_names())
def test_what_a_profile_states_is_short_and_makes_it_again(name):
    profile = resolved_profile(name, seed=3, overrides="training.algorithm.preset=dapo")
    stated = stated_json(profile)
    assert parsed_profile(stated) == profile
    assert len(stated) < len(profile.model_dump_json()) / 3


FORM = {
    "knowledge_path": "/docs", "base_model": "/models/m", "demonstrations": "50",
    "heldout_questions": "70", "algorithm": "gspo", "training_steps": " 7", "tasks_per_step": "6",
    "group_size": "10", "learning_rate": "2e-4",
}  # fmt: skip


def test_each_field_of_the_form_replaces_its_key():
    own = 'knowledge.source="folder"; knowledge.questions="/q.jsonl"; knowledge.max_cities=0\n'
    own += "training.steps=3; rollout.max_rows = 8"
    profile = resolved_profile("smoke", seed=9, overrides=own, form=FORM)
    assert set(FORM) == set(FORM_KEYS)
    training = profile.training
    assert (profile.seed, profile.rollout.max_rows) == (9, 8)
    assert (profile.knowledge.path, profile.policy.model) == (Path("/docs"), Path("/models/m"))
    assert (profile.synthesis.trajectories, profile.synthesis.heldout_tasks) == (50, 70)
    assert (training.algorithm.preset, training.steps) == ("gspo", 7)
    assert (training.tasks_per_step, training.group_size) == (6, 10)
    assert training.optimizer.learning_rate == 2e-4
    form = dict.fromkeys(FORM_KEYS, "")
    assert resolved_profile("smoke", seed=0, overrides="", form=form) == named_profile("smoke")


_DEEP = 20_000


@pytest.mark.parametrize(
    "overrides",
    [
        "training.steps=" + "[" * _DEEP,
        "training.steps=" + "[" * _DEEP + "]" * _DEEP,
        "training.steps=" + "[" * 900 + "]" * 900,
        "training.steps=" + "[" * 300 + "]" * 300,
        "training.steps=" + "{a=" * _DEEP,
        "training=" + "{a=" * 900 + "1" + "}" * 900,
        "training.steps=" + "[{a=" * 2000 + "1" + "}]" * 2000,
        "training" + ".a" * _DEEP + "=1",
        "a." * _DEEP + "=1",
        "training.steps=" + "9" * 5000,
        "training.steps=" + "-" * _DEEP,
        "notes=" + "[1," * 3000 + "]" * 3000,
        "[" * _DEEP,
        "training.steps\n" + "=" * _DEEP,
    ],
)
def test_deep_values_of_the_form_are_one_message(overrides):
    with pytest.raises(ProfileError) as refused:
        resolved_profile("smoke", seed=0, overrides=overrides)
    assert str(refused.value)


_TEXT_KEYS = {"base_model", "knowledge_path"}


@pytest.mark.parametrize("key", sorted(FORM_KEYS.keys() - _TEXT_KEYS))
def test_a_deep_value_of_a_field_names_its_key(key):
    with pytest.raises(ProfileError, match=FORM_KEYS[key].partition(".")[0]):
        resolved_profile("smoke", seed=0, overrides="", form={key: "[" * _DEEP})


@pytest.mark.parametrize("inside", ["[", '{"a":'])
@pytest.mark.parametrize("levels", [200, 900, _DEEP])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_deep_profile_of_the_form_is_one_message(inside, levels, is_closed):
    end = "]" if inside == "[" else "}"
    deep = inside * levels + "1" + end * levels * is_closed
    with pytest.raises(ProfileError):
        resolved_profile('{"training": ' + deep + "}", seed=0, overrides="")
    with pytest.raises(ProfileError):
        parsed_profile('{"training": ' + deep + "}")


@pytest.mark.parametrize(
    ("name", "form", "key"),
    [
        ("smoke", {"training_steps": "many"}, r"training\.steps"),
        ("smoke", {"group_size": "0"}, r"training\.group_size"),
        ('{"trainig": {}}', {}, "trainig"),
        ("labtop", {}, "mean laptop"),
        ("zzz", {}, "zzz.*laptop"),
    ],
)
def test_a_refused_profile_or_value_is_named(name, form, key):
    with pytest.raises(ProfileError, match=key):
        resolved_profile(name, seed=0, overrides="", form=form)


def test_a_step_hands_the_profile_on_and_logs_its_cost(monkeypatch, tmp_path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged, given, out = {}, [], tmp_path / "out"
    monkeypatch.setattr(Stage, "run", lambda _stage, *inputs: given.extend(inputs))
    text = Profile(seed=4).model_dump_json()
    run_stage("validate", text, {"knowledge": "k"}, str(out), logged)
    assert given[:3] == [Profile(seed=4), {"knowledge": Path("k")}, out]
    assert logged["peak_rss_mb"] > 1
    assert 0 <= logged["seconds"] < 60


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


def ran(folder, **changes):
    """What a step of validation logs and shows."""
    paths = {name: str(folder / name) for name in ("page", "verdict")} | changes
    logged, shown = {}, ShownOutputs(**paths)
    run_stage("validate", Profile().model_dump_json(), {}, str(folder / "out"), logged, shown)
    return logged, shown


def test_refused_rows_are_shown_and_judged_by_the_next_step(refused):
    logged, shown = ran(refused)
    assert logged["seconds"] >= 0
    assert Path(shown.page).read_text() == "<p>why</p>"
    with pytest.raises(SystemExit) as ended:
        require_valid(Path(shown.verdict).read_text(), "s3://bucket/run/page")
    message = ended.value.code
    assert message.startswith("error: validate: ")
    assert FAULTS[0] in message
    assert "s3://bucket/run/page" in message
    require_valid("[]", "s3://bucket/run/page")  # sound rows let it pass


def test_a_verdict_is_small_whatever_the_rows_hold(tmp_path):
    """It is a parameter: in the launcher's memory, in pods' definitions and in a database."""
    faults = [f"tasks: row {n}: found {'x' * 100_000}" for n in range(1000)]
    running._write_verdict(tmp_path / "verdict", faults)
    kept = json.loads((tmp_path / "verdict").read_text())
    assert (tmp_path / "verdict").stat().st_size < 32 * 1024
    assert kept[0].startswith("tasks: row 0: found xxx")
    assert kept[-1] == "and 980 more; see the report"


def test_refused_rows_end_a_step_that_hands_no_verdict_on(refused):
    with pytest.raises(SystemExit, match="error: validate: "):
        ran(refused, verdict=None)
    assert not (refused / "page").exists()


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
    with pytest.raises(SystemExit, match="experiment"):
        run_stage("train", Profile().model_dump_json(), {}, str(tmp_path / "out"), {})
    assert pauses == [5.0, 10.0]
    assert "5 s" in capsys.readouterr().err


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
