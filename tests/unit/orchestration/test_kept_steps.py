"""A step whose output an earlier run has kept fetches it; whatever is wrong with the store."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from espalier.config import Profile
from espalier.orchestration.step_runner import StepOrder
from espalier.records import (
    DataError,
    Patience,
    Provenance,
    open_artifact,
    patient,
    publishing,
    work_dir,
)
from espalier.steps import kept as module
from espalier.steps.kept import run_or_fetch
from espalier.storage import mirror, settings
from espalier.storage.layout import KEPT_MARK
from tests.factories.storage import QUICK, files
from tests.factories.tracking import Notes
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.unit.orchestration.small_chain import small_stage

ARTIFACTS = f"s3://{BUCKET}/runs"


@pytest.fixture
def s3(monkeypatch):
    found = settings.s3_settings
    monkeypatch.setattr(
        "espalier.storage.expiring.s3_settings", lambda given: replace(found(given), retries=QUICK)
    )
    monkeypatch.setattr(mirror, "POLL_S", 0.02)
    with s3_stand_in() as stand_in:
        stand_in.page = 1000
        yield stand_in


class Step:
    """One run's step `synthesize`: what it reads, how often it ran, what it said."""

    def __init__(self, s3, folder, *, knowledge="cities", **environment):
        self.environment = {**s3.environment, "ESPALIER_ARTIFACTS": ARTIFACTS, **environment}
        self.folder = folder
        self.tracker = Notes()
        self.runs = 0
        self.stage = small_stage("synthesize", "synthetic", "knowledge")
        self.work = lambda output: None
        object.__setattr__(self.stage, "work", self._work)
        folder.mkdir()
        made = Provenance(producer="ingest", config_digest="c", seed=0)
        with publishing(folder / "knowledge", made) as draft:
            (draft.path / "rows").write_text(knowledge)

    def _work(self, profile, inputs, output, tracker):
        self.runs += 1
        self.work(output)
        contents = {name: open_artifact(path).content for name, path in inputs.items()}
        made = Provenance(
            producer="synthesize",
            config_digest=self.stage.digest(profile),
            seed=profile.seed,
            inputs=contents,
        )
        with publishing(output, made) as draft:
            (draft.path / "rows").write_text(f"{profile.seed} {contents}")
            (draft.path / "run.json").write_text(f"measured in {self.folder}")
        return draft.published

    def run(self, profile=None, stage=None):
        return run_or_fetch(
            stage or self.stage,
            profile or Profile(),
            {"knowledge": self.folder / "knowledge"},
            self.folder / "synthetic",
            self.tracker,
            self.environment,
        )


def outputs(s3):
    return {key.split("/")[3] for key in s3.objects if key.startswith("runs/kept/synthesize/")}


def test_equal_inputs_fetch_what_an_earlier_run_made(s3, tmp_path):
    first, second = Step(s3, tmp_path / "one"), Step(s3, tmp_path / "two")
    made = first.run()
    assert second.run() == made
    assert (first.runs, second.runs) == (1, 0)
    assert files(tmp_path / "two" / "synthetic") == files(tmp_path / "one" / "synthetic")
    assert s3.counted("PUT", re.escape(KEPT_MARK)) == 2, "a use renews the mark"
    (key,) = outputs(s3)
    (kept,), (fetched,) = first.tracker.lines, second.tracker.lines
    assert f"{ARTIFACTS}/kept/synthesize/{key}" in kept
    assert f"{ARTIFACTS}/kept/synthesize/{key}" in fetched
    assert str(made.created) in fetched


def test_other_settings_inputs_or_code_run_the_stage(s3, tmp_path, monkeypatch):
    Step(s3, tmp_path / "one").run()
    steps = [Step(s3, tmp_path / "two"), Step(s3, tmp_path / "three", knowledge="towns")]
    steps[0].run(Profile(seed=1))
    steps[1].run()
    for name in ("espalier.stages.register.code_digest", "espalier.steps.kept.package_versions"):
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda *_: {"torch": "another"})
            steps.append(Step(s3, tmp_path / name))
            steps[-1].run()
    assert [step.runs for step in steps] == [1, 1, 1, 1]
    assert len(outputs(s3)) == 5


@pytest.mark.parametrize("variable", ["", None])
def test_without_an_address_nothing_is_asked_for(s3, tmp_path, variable):
    step = Step(s3, tmp_path / "one", ESPALIER_ARTIFACTS=variable)
    step.run()
    assert (step.runs, step.tracker.lines, s3.requests) == (1, [], [])


def test_registering_is_done_for_each_run(s3, tmp_path):
    step = Step(s3, tmp_path / "one")
    register = small_stage("register", "synthetic", "knowledge")
    object.__setattr__(register, "work", step._work)
    step.run(stage=register)
    step.run(stage=register)
    assert (step.runs, s3.requests) == (2, [])


@pytest.mark.parametrize("harm", ["lost", "damaged", "cut", "half-published", "garbled"])
def test_a_damaged_output_is_made_again_and_mended(s3, tmp_path, harm):
    Step(s3, tmp_path / "one").run()
    below = f"runs/kept/synthesize/{outputs(s3).pop()}/"
    manifest = f"{below}manifest.json"
    content = next(name for name in s3.objects if name.startswith(f"{below}sha256/"))
    harmed = manifest if harm in ("half-published", "garbled") else content
    if harm in ("lost", "half-published"):
        del s3.objects[harmed]
    else:
        kept = s3.objects[harmed]
        # the listing is as before where the size is
        flipped = bytes(byte ^ 1 for byte in kept.content)
        new = {"damaged": flipped, "cut": b"", "garbled": b"{"}[harm]
        s3.objects[harmed] = kept._replace(content=new)
    second, third = Step(s3, tmp_path / "two"), Step(s3, tmp_path / "three")
    made = second.run()
    assert third.run() == made
    assert (second.runs, third.runs) == (1, 0)


@pytest.mark.parametrize(("method", "pattern"), [("GET", ""), ("PUT", ""), ("GET", "/sha256/")])
def test_a_store_that_is_away_lets_the_stage_run(s3, tmp_path, method, pattern):
    made = Step(s3, tmp_path / "one").run()
    second = Step(s3, tmp_path / "two")
    s3.fail(method, pattern, "error", times=10**6)
    assert second.run().content == made.content
    assert second.runs == 1
    assert "cannot be used" in second.tracker.lines[0]


def test_a_patient_step_waits_for_the_store(s3, tmp_path):
    made = Step(s3, tmp_path / "one").run()
    second = Step(s3, tmp_path / "two")
    s3.fail("GET", "", "error", times=10**6)
    said = []
    with patient(Patience(total_s=60, say=said.append, sleep=lambda _: s3.faults.clear())):
        assert second.run() == made
    assert (second.runs, len(said)) == (0, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY"),
        ({"ESPALIER_ARTIFACTS": "/data"}, "/data/kept/"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "cannot be used"),
        ({"ESPALIER_ARTIFACTS": "s3://absent/runs"}, "cannot be used"),
    ],
)
def test_a_store_that_refuses_lets_the_stage_run(s3, tmp_path, changes, said):
    step = Step(s3, tmp_path / "one", **changes)
    assert step.run() == open_artifact(tmp_path / "one" / "synthetic")
    assert step.runs == 1
    assert said in step.tracker.lines[0]


def test_two_runs_at_once_both_keep_equal_content(s3, tmp_path):
    both = threading.Barrier(2)
    steps = [Step(s3, tmp_path / name) for name in ("one", "two")]
    for step in steps:
        step.work = lambda output: both.wait(timeout=20)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(Step.run, steps))
    assert [step.runs for step in steps] == [1, 1]
    assert made[0].content == made[1].content
    assert all("kept for later runs" in step.tracker.lines[-1] for step in steps)
    third = Step(s3, tmp_path / "three")
    assert third.run() in made
    assert third.runs == 0


def leave_checkpoint(output):
    work_dir(output).mkdir()
    (work_dir(output) / "latest.pt").write_bytes(b"step 7")


def test_a_killed_stage_goes_on_from_its_copied_checkpoint(s3, tmp_path):
    first, second = Step(s3, tmp_path / "one"), Step(s3, tmp_path / "two")
    taken_up = []

    def fail(output):
        leave_checkpoint(output)
        raise DataError("a lost worker")

    first.work = fail
    second.work = lambda output: taken_up.append(files(work_dir(output)))
    with pytest.raises(DataError, match="a lost worker"):
        first.run()
    second.run()
    assert taken_up == [{"latest.pt": b"step 7"}]
    assert not any("/checkpoints/" in key for key in s3.objects), "the output is kept"


def leave_copied(s3, output):
    leave_checkpoint(output)
    while not any(key.endswith("manifest.json") for key in s3.objects):
        threading.Event().wait(0.01)


def test_a_checkpoint_stays_while_the_output_is_not_kept(s3, tmp_path):
    step = Step(s3, tmp_path / "one")

    def save(output):
        leave_copied(s3, output)
        s3.fail("PUT", "/kept/", "error", times=10**6)

    step.work = save
    step.run()
    assert "http" in step.tracker.lines[-1]
    assert any("/checkpoints/synthesize/" in key for key in s3.objects)


@pytest.mark.parametrize("artifacts", ["", ARTIFACTS])
def test_whoever_names_the_checkpoints_place_forgets_it(s3, tmp_path, artifacts):
    own = f"s3://{BUCKET}/runs/r17/steps/synthesize/checkpoint"
    step = Step(s3, tmp_path / "one", ESPALIER_ARTIFACTS=artifacts, ESPALIER_CHECKPOINTS=own)
    step.work = lambda output: leave_copied(s3, output)
    step.run()
    below = {key.split("/")[1] for key in s3.objects}
    assert below == ({"r17", "kept"} if artifacts else {"r17"})
    assert "runs/r17/steps/synthesize/checkpoint/manifest.json" in s3.objects
    module.forget_checkpoint(own, step.environment, print)
    assert not any("/checkpoint/" in key for key in s3.objects)


def test_a_step_in_s3_names_its_checkpoints_below_its_run(tmp_path):
    given = {"stage": "train", "profile": Profile(), "workspace": tmp_path}
    in_s3 = StepOrder(run_uri=f"s3://{BUCKET}/runs/r17", **given)
    assert in_s3.checkpoints == f"s3://{BUCKET}/runs/r17/steps/train/checkpoint"
    assert StepOrder(run_uri=os.fspath(tmp_path / "run"), **given).checkpoints is None
