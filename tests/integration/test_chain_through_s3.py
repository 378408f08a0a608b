"""The whole chain as its pods run it on a cluster: one command a step, S3 in between."""

import json
import os
import subprocess
import sys

import pytest

from espalier.chain import CHAIN
from espalier.orchestration.step_runner import container_command
from espalier.registry.connection import TrackingTarget, connect
from espalier.registry.tracking import open_parent_run
from espalier.steps.profiles import named_profile
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.integration.commands import espalier, settings
from tests.integration.test_kfp_local import TINY

RUN = f"s3://{BUCKET}/runs/r17"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("through-s3")


@pytest.fixture(scope="module")
def in_process(folder):
    done = espalier(
        "run", "--profile", "smoke", "--out", "runs/one", "--json", *settings(*TINY), cwd=folder
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def through_s3(folder):
    """The objects that the steps left, and MLflow's client with the id of their common run."""
    target = TrackingTarget(f"sqlite:///{folder}/mlflow.db", "espalier")
    parent = open_parent_run(target, "r17", {})
    profile = named_profile("smoke", TINY).model_dump_json()
    with s3_stand_in() as stand_in:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        environment |= stand_in.environment
        environment |= {"MLFLOW_TRACKING_URI": target.uri, "MLFLOW_RUN_ID": parent.run_id}
        for stage in CHAIN:
            # every pod begins with nothing of the one before it
            workspace = folder / f"pod-{stage.name}"
            program, *arguments = container_command(stage.name, profile, RUN)
            assert program == "espalier"
            done = subprocess.run(
                [
                    sys.executable, "-c", "from espalier.cli import main; main()",
                    *arguments, "--workspace", str(workspace),
                ],
                env=environment, cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        yield stand_in.objects, connect(target.uri), parent.run_id


@pytest.mark.slow
def test_steps_over_s3_make_the_artifacts_of_one_process(in_process, through_s3):
    objects, _, _ = through_s3
    made = {
        stage.output: json.loads(objects[f"runs/r17/{stage.output}/manifest.json"][0])["content"]
        for stage in CHAIN
    }
    assert made == in_process["digests"]


@pytest.mark.slow
def test_every_step_is_tracked_below_its_run(through_s3):
    _, client, run_id = through_s3
    experiment = client.get_run(run_id).info.experiment_id
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{run_id}'")
    assert {run.info.run_name for run in found} == {stage.name for stage in CHAIN}
    assert {run.info.status for run in found} == {"FINISHED"}
