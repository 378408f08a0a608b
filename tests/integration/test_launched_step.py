"""`espalier step` where a profile asks for Ray or Trainer: the command that its Job's pod runs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.steps.profiles import named_profile
from tests.factories.storage import artifact, s3_place
from tests.fakes.launched_stand_in import launched_stand_in, state, trained
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.unit.cluster.objects.samples import LAPTOP_TRAINER, NODES

RUN = f"s3://{BUCKET}/runs/r17"
OWNER = ("batch/v1", "Job", "r17-train", "6c8f2b1e")
DEADLINE_S = 120


@pytest.fixture
def s3():
    with s3_stand_in() as stand_in:
        yield stand_in


@pytest.fixture
def cluster(tmp_path):
    with launched_stand_in(tmp_path) as stand_in:
        yield stand_in


def started(s3, cluster, folder, stage="train", settings=NODES):
    smoke = named_profile("smoke")
    changes = {"kubernetes": settings}
    if settings is NODES:
        changes["training"] = smoke.training.model_copy(update={"processes": 16})
    profile = smoke.model_copy(update=changes).model_dump_json()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    environment |= s3.environment | {"KUBECONFIG": str(cluster.kubeconfig), RUN_ID_VARIABLE: "r17"}
    environment |= dict(zip(OWNER_VARIABLES, OWNER, strict=True))
    return subprocess.Popen(
        [
            sys.executable, "-c", "from espalier.cli import main; main()", "step", stage,
            "--profile", profile, "--run", RUN, "--workspace", str(folder / "s3"),
        ],
        env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def test_a_deleted_pod_takes_its_ray_job_with_it(s3, cluster, tmp_path):
    cluster.script = [state("Running", "RUNNING")]
    with started(s3, cluster, tmp_path) as process:
        wait_until(lambda: cluster.objects)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert [name for name, _ in cluster.deleted] == ["r17-train-ray"]
    assert "deleting RayJob r17-train-ray: signal 15" in said


def test_what_the_driver_published_is_the_steps_output(s3, cluster, tmp_path):
    cluster.script = [state("Running", "RUNNING")]
    made = artifact(tmp_path / "made")
    with started(s3, cluster, tmp_path) as process:
        wait_until(lambda: cluster.objects)
        s3_place(s3, "runs/r17/trained_policy").publish(tmp_path / "made")
        cluster.script = [state("Complete", "SUCCEEDED")]
        printed, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert printed.strip() == made.content
    assert cluster.deleted == []
    entrypoint = cluster.objects["r17-train-ray"]["spec"]["entrypoint"]
    assert entrypoint.startswith("espalier step train --profile ")
    assert entrypoint.endswith(f"--run {RUN}")


def test_what_a_train_job_published_is_the_steps_output(s3, cluster, tmp_path):
    cluster.script = [trained(active=1)]
    made = artifact(tmp_path / "made")
    with started(s3, cluster, tmp_path, "warm_start", LAPTOP_TRAINER) as process:
        wait_until(lambda: cluster.objects)
        s3_place(s3, "runs/r17/warm_policy").publish(tmp_path / "made")
        cluster.script = [trained(Complete="True")]
        printed, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert printed.strip() == made.content
    spec = cluster.objects["tj-r17-warm"]["spec"]
    assert spec["runtimeRef"]["name"] == "espalier-sft"
    assert spec["trainer"]["command"][:4] == ["espalier", "step", "warm_start", "--profile"]
    assert spec["trainer"]["command"][-2:] == ["--run", RUN]


def test_a_driver_that_fails_lets_the_job_try_again(s3, cluster, tmp_path):
    cluster.script = [state("Failed", "FAILED", "driver exited with 1")]
    with started(s3, cluster, tmp_path) as process:
        _, said = process.communicate(timeout=DEADLINE_S)
    rules = json.dumps(_exit_codes_that_end_a_job())
    assert str(process.returncode) not in rules
    assert process.returncode > 0
    assert "driver exited with 1" in said


def _exit_codes_that_end_a_job():
    from tests.unit.cluster.objects.samples import job

    rules = job("train", NODES)["spec"]["podFailurePolicy"]["rules"]
    return [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule]
