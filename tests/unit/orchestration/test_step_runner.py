from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from espalier.chain import STAGES
from espalier.cluster import launching
from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.config import Profile
from espalier.determinism import TRAINER_VARIABLE
from espalier.orchestration import step_runner
from espalier.orchestration.step_runner import StepFailed, StepOrder, run_step
from espalier.records import (
    ArtifactError,
    EspalierError,
    Provenance,
    publishing,
    read_manifest,
)
from espalier.steps import refusing
from espalier.steps.profiles import named_profile
from tests.factories.storage import artifact, key_of, s3_place
from tests.fakes.launched_stand_in import launched_stand_in, state, trained
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.integration.train_nodes import variables
from tests.integration.waiting import wait_until
from tests.unit.cluster.objects.samples import NODES, TRAINER

HEAD_LOST = "Submitter completed but Ray job not found in RayCluster."
RUN = f"s3://{BUCKET}/runs/r17"


@pytest.fixture
def s3(monkeypatch):
    with s3_stand_in() as stand_in:
        for name, value in stand_in.environment.items():
            monkeypatch.setenv(name, value)
        yield stand_in


def ordered(tmp_path, stage="ingest", **changes):
    given = {"stage": stage, "profile": Profile(), "run_uri": RUN, "workspace": tmp_path / "s3"}
    return StepOrder(**given | changes)


def silent(line):
    pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": "ingets"}, "ingets.*ingest"),
        ({"inputs": {"knowledge": "x"}}, "input knowledge"),
        ({"stage": "validate", "inputs": {"x": "y"}}, "input x.* knowledge"),
        ({"output": "gs://bucket/key"}, "gs://"),
        ({"stage": "synthesize"}, f"{RUN}/knowledge: "),  # nothing is there
    ],
)
def test_an_order_that_makes_no_sense_is_refused(s3, tmp_path, changes, message):
    with pytest.raises(EspalierError, match=message):
        run_step(ordered(tmp_path, **changes), silent)


def test_artifacts_lie_where_kubeflow_would_put_them(tmp_path):
    assert ordered(tmp_path).folder == tmp_path / "s3" / BUCKET / "runs" / "r17"
    assert ordered(tmp_path, run_uri=str(tmp_path / "run")).folder == tmp_path / "run"


def synthesized(run, profile, source=None):
    """Publish the folders of a run up to its synthetic rows; returns the manifest of these."""
    content = artifact(run / "knowledge").content
    provenance = Provenance(
        producer="synthesize",
        config_digest=STAGES["synthesize"].digest(profile),
        seed=0,
        inputs={"knowledge": source or content},
    )
    with publishing(run / "synthetic", provenance) as draft:
        (draft.path / "rows").write_text("rows")
    return draft.published


@pytest.mark.parametrize("harm", ["lost", "cut"])
def test_a_current_output_with_a_lost_file_is_made_again(s3, tmp_path, harm):
    """A damaged input tells: a step that is not kept reads it."""
    published = synthesized(tmp_path / "run", Profile())
    for name in ("knowledge", "synthetic"):
        s3_place(s3, f"runs/r17/{name}").publish(tmp_path / "run" / name)
    assert run_step(ordered(tmp_path, "synthesize"), silent) == published
    lost = key_of(b"rows", "runs/r17/synthetic")
    s3.objects[lost] = s3.objects[lost]._replace(content=b"row")
    if harm == "lost":
        del s3.objects[lost]
    s3.objects[key_of(b"{}\n")] = s3.objects[key_of(b"{}\n")]._replace(content=b"[]\n")
    said = []
    with pytest.raises(ArtifactError, match="knowledge"):
        run_step(ordered(tmp_path, "synthesize"), said.append)
    assert said[0] == f"synthesize: {RUN}/synthetic has lost rows"


@pytest.mark.parametrize(
    ("settings", "source", "is_kept"),
    [({}, None, True), ({"seed": 1}, None, False), ({}, "another", False)],
)
def test_a_step_is_kept_while_its_settings_and_inputs_hold(tmp_path, settings, source, is_kept):
    """A damaged input tells the two apart: a step that is kept does not read it."""
    run = tmp_path / "run"
    published = synthesized(run, Profile(), source)
    (run / "knowledge" / "rows.jsonl").write_text("edited")
    order = ordered(tmp_path, "synthesize", run_uri=str(run), profile=Profile(**settings))
    if is_kept:
        assert run_step(order, silent) == published
    else:
        with pytest.raises(ArtifactError, match="knowledge"):
            run_step(order, silent)


@pytest.mark.parametrize(
    ("settings", "name", "ended", "cause"),
    [
        (NODES, "r17-train-ray", state("Failed", "", HEAD_LOST), HEAD_LOST),
        (NODES, "r17-train-ray", state("Failed", "FAILED", "exited with 1"), "exited with 1"),
        (TRAINER, "tj-r17-train", trained(Failed="True", message="jobset failed"), "jobset failed"),
    ],
)
def test_a_launching_pod_says_why_its_object_failed(
    s3, tmp_path, monkeypatch, settings, name, ended, cause
):
    """A lost head pod leaves no message of its own (ray-project/kuberay#3860)."""
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(refusing, "TERMINATION_LOG", log)
    monkeypatch.setattr(launching, "_POLL_S", 0.02)
    owner = ("batch/v1", "Job", "r17-train", "6c8f2b1e")
    variables = dict(zip(OWNER_VARIABLES, owner, strict=True)) | {RUN_ID_VARIABLE: "r17"}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    profile = named_profile("smoke")
    training = profile.training.model_copy(update={"processes": 16 if settings is NODES else 1})
    changed = profile.model_copy(update={"kubernetes": settings, "training": training})
    for folder in STAGES["train"].inputs:
        artifact(tmp_path / folder)
        s3_place(s3, f"runs/r17/{folder}").publish(tmp_path / folder)
    with launched_stand_in(tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        cluster.script = [ended]
        with pytest.raises(StepFailed) as failed:
            run_step(ordered(tmp_path, "train", profile=changed), silent)
        assert list(cluster.objects) == [name], "its operator keeps it, for its logs"
    assert failed.value.exit_code == 3, "which espalier's Jobs try again"
    assert log.read_text().startswith("error: train: ")
    assert log.read_text().endswith(f": {cause}")


def on_node(monkeypatch, index):
    """This process is in a pod of a TrainJob with two nodes."""
    for name, value in variables(index, port=29400).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("stage", ["synthesize", "train"])
def test_nodes_that_the_profile_does_not_name_are_refused(s3, tmp_path, monkeypatch, stage):
    """Each of their pods would run the stage and publish the same artifact."""
    on_node(monkeypatch, 1)
    with pytest.raises(EspalierError, match=r"2 nodes \(PET_NNODES\), and the stage uses 1"):
        run_step(ordered(tmp_path, stage), silent)  # nothing is there that it could read
    assert not any(key.endswith("manifest.json") for key in s3.objects)


TWO_NODES = Profile.model_validate(
    {
        "training": {"processes": 2},
        "kubernetes": {"trainer": "trainjob", "nodes": 2, "workspace_claim": "shared"},
    }
)


def test_a_ray_jobs_driver_has_nodes_of_its_own(s3, tmp_path, monkeypatch):
    monkeypatch.setenv(TRAINER_VARIABLE, "rayjob")
    profile = Profile.model_validate(
        {"training": {"processes": 16}, "kubernetes": NODES.model_dump()}
    )
    with pytest.raises(EspalierError, match=f"{RUN}/"):  # it looks for its inputs
        run_step(ordered(tmp_path, "train", profile=profile), silent)


@pytest.fixture
def train_order(s3, tmp_path, monkeypatch):
    """The order of training in a pod of a TrainJob, whose inputs are published."""
    monkeypatch.setenv(TRAINER_VARIABLE, "trainjob")
    monkeypatch.setattr(step_runner, "_LOOKS_EVERY_S", 0.05)
    for name in STAGES["train"].inputs:
        artifact(tmp_path / "made" / name)
        s3_place(s3, f"runs/r17/{name}").publish(tmp_path / "made" / name)
    return ordered(tmp_path, "train", profile=TWO_NODES)


def test_another_node_serves_until_the_first_has_published(s3, tmp_path, monkeypatch, train_order):
    on_node(monkeypatch, 1)
    serves = tmp_path / "serves"
    monkeypatch.setattr(
        step_runner, "_SERVE_NODE", ("sh", "-c", f"echo $$ > {serves}; exec sleep 600")
    )
    run = tmp_path / "made"
    provenance = Provenance(
        producer="train",
        config_digest=STAGES["train"].digest(TWO_NODES),
        seed=0,
        inputs={name: read_manifest(run / name).content for name in STAGES["train"].inputs},
    )
    with publishing(run / "policy", provenance) as draft:
        (draft.path / "weights").write_text("w")

    def publish():
        wait_until(lambda: serves.exists() and serves.read_text())
        s3_place(s3, f"runs/r17/{STAGES['train'].output}").publish(run / "policy")

    with ThreadPoolExecutor(1) as first:
        done = first.submit(publish)
        assert run_step(train_order, silent) == draft.published
        done.result()
    assert not Path("/proc", serves.read_text().strip()).exists()


def test_a_node_that_cannot_serve_ends_its_pod(monkeypatch, train_order):
    on_node(monkeypatch, 1)
    monkeypatch.setattr(step_runner, "_SERVE_NODE", ("sh", "-c", "exit 7"))
    with pytest.raises(StepFailed) as caught:
        run_step(train_order, silent)
    assert caught.value.exit_code == 7
