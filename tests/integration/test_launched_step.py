"""`espalier step` where a profile asks for Ray or Trainer: the command that its Job's pod runs."""

import json
import re
import signal

import pytest

from espalier.cluster.objects.job import OWNER_VARIABLES, RUN_ID_VARIABLE
from espalier.steps.profiles import named_profile
from tests.factories.storage import artifact, s3_place
from tests.fakes.launched_stand_in import launched_stand_in, state, trained
from tests.fakes.s3_stand_in import BUCKET
from tests.integration.commands import started
from tests.integration.waiting import wait_until
from tests.unit.cluster.objects.samples import LAPTOP_TRAINER, NODES, job

RUN = f"s3://{BUCKET}/runs/r17"
OWNER = ("batch/v1", "Job", "r17-train", "6c8f2b1e")
DEADLINE_S = 120


@pytest.fixture
def cluster(tmp_path):
    with launched_stand_in(tmp_path) as stand_in:
        yield stand_in


def step(s3, cluster, folder, stage="train", settings=NODES):
    smoke = named_profile("smoke")
    changes = {"kubernetes": settings}
    if settings is NODES:
        changes["training"] = smoke.training.model_copy(update={"processes": 16})
    profile = smoke.model_copy(update=changes).model_dump_json()
    variables = s3.environment | {"KUBECONFIG": str(cluster.kubeconfig), RUN_ID_VARIABLE: "r17"}
    variables |= dict(zip(OWNER_VARIABLES, OWNER, strict=True))
    options = ("--profile", profile, "--run", RUN, "--workspace", folder / "s3")
    return started("step", stage, *options, cwd=folder, **variables)


def test_a_deleted_pod_takes_its_ray_job_with_it(s3, cluster, tmp_path):
    cluster.script = [state("Running", "RUNNING")]
    with step(s3, cluster, tmp_path) as process:
        wait_until(lambda: cluster.objects)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert [name for name, _ in cluster.deleted] == ["r17-train-ray"]
    assert "deleting RayJob r17-train-ray: signal 15" in said


@pytest.mark.parametrize(
    ("stage", "settings", "running", "done", "name", "output"),
    [
        ("train", NODES, state("Running", "RUNNING"), state("Complete", "SUCCEEDED"),
         "r17-train-ray", "trained_policy"),
        ("warm_start", LAPTOP_TRAINER, trained(active=1), trained(Complete="True"),
         "tj-r17-warm", "warm_policy"),
    ],
    ids=["RayJob", "TrainJob"],
)  # fmt: skip
def test_what_was_published_is_the_steps_output(
    s3, cluster, tmp_path, stage, settings, running, done, name, output
):
    cluster.script = [running]
    made = artifact(tmp_path / "made")
    with step(s3, cluster, tmp_path, stage, settings) as process:
        wait_until(lambda: cluster.objects)
        s3_place(s3, f"runs/r17/{output}").publish(tmp_path / "made")
        cluster.script = [done]
        printed, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert printed.strip() == made.content
    assert cluster.deleted == []
    spec = json.dumps(cluster.objects[name]["spec"])
    assert re.search(rf"espalier\W+step\W+{stage}\W+--profile", spec)
    assert RUN in spec


def test_a_driver_that_fails_lets_the_job_try_again(s3, cluster, tmp_path):
    cluster.script = [state("Failed", "FAILED", "driver exited with 1")]
    with step(s3, cluster, tmp_path) as process:
        _, said = process.communicate(timeout=DEADLINE_S)
    rules = job("train", NODES)["spec"]["podFailurePolicy"]["rules"]
    ending = [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule]
    assert process.returncode > 0
    assert not any(process.returncode in values for values in ending)
    assert "driver exited with 1" in said
