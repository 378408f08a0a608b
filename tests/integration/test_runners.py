"""The whole chain by each runner: in one process, by kfp local, as the steps of a cluster."""

import json
import os

import pytest

from espalier.chain import CHAIN
from espalier.cli import command_line
from espalier.orchestration.step_runner import container_command
from espalier.records import open_artifact
from espalier.registry.connection import TrackingTarget, connect
from espalier.registry.tracking import open_parent_run
from espalier.steps.profiles import named_profile
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.integration.commands import espalier, espalier_here, settings

RUN = f"s3://{BUCKET}/runs/r17"
TINY = [
    "threads=1",
    "synthesis.train_tasks=200",
    "synthesis.dev_tasks=20",
    "synthesis.heldout_tasks=60",
    "synthesis.trajectories=40",
    "policy.prestage.steps=4",
    "warm_start.steps=6",
    "warm_start.dev_questions=10",
    "curriculum.enabled=false",
    "training.steps=1",
    "training.tasks_per_step=4",
    "training.group_size=4",
    "training.dev_questions=10",
    "evaluation.sampled_questions=8",
    "registry.min_questions=61",
]
"""The smoke profile with fewer tasks and steps: the path counts here, not what is learned."""


def run(runner, out, cwd):
    options = ("--profile", "smoke", "--runner", runner, "--out", out, "--json")
    done = espalier("run", *options, *settings(*TINY), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("both")


@pytest.fixture(scope="module")
def in_process(folder):
    return run("in-process", "runs/one", folder)


@pytest.fixture(scope="module")
def kfp_local(folder):
    return run("kfp-local", "runs/two", folder)


def step_status(arguments, environment, cwd):
    """The command around a step in this process; the step has one of its own, as in a pod."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        return command_line()(arguments, standalone_mode=False) or 0


@pytest.fixture(scope="module")
def through_s3(folder):
    """One command a step, as pods run it, S3 in between.

    The objects that the steps left, and MLflow's client with the id of their common run.
    """
    target = TrackingTarget(f"sqlite:///{folder}/mlflow.db", "espalier")
    parent = open_parent_run(target, "r17", {})
    profile = named_profile("smoke", TINY)
    with s3_stand_in() as stand_in:
        environment = stand_in.environment
        environment |= {"MLFLOW_TRACKING_URI": target.uri, "MLFLOW_RUN_ID": parent.run_id}
        for stage in CHAIN:
            # every pod begins with nothing of the one before it
            workspace = folder / f"pod-{stage.name}"
            program, *arguments = container_command(stage.name, profile, RUN)
            assert program == "espalier"
            arguments += ["--workspace", str(workspace)]
            assert step_status(arguments, environment, folder) == 0, stage.name
        yield stand_in.objects, connect(target.uri), parent.run_id


@pytest.mark.slow
def test_both_runners_make_the_same_artifacts(folder, in_process, kfp_local):
    assert kfp_local["digests"] == in_process["digests"]
    assert set(kfp_local["digests"]) == {stage.output for stage in CHAIN}
    assert set(kfp_local["stages"]) == set(in_process["stages"])
    assert all(figures["seconds"] > 0 for figures in kfp_local["stages"].values())
    for stage in CHAIN:
        open_artifact(folder / "runs" / "two" / stage.output)
    assert not (folder / "runs" / "two" / ".kfp").exists()
    assert (folder / "runs" / "two" / "report.html").is_file()


@pytest.mark.slow
def test_tracked_steps_over_s3_make_the_artifacts_of_one_process(in_process, through_s3):
    objects, client, run_id = through_s3
    made = {
        stage.output: json.loads(objects[f"runs/r17/{stage.output}/manifest.json"][0])["content"]
        for stage in CHAIN
    }
    assert made == in_process["digests"]
    experiment = client.get_run(run_id).info.experiment_id
    found = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{run_id}'")
    assert {run.info.run_name for run in found} == {stage.name for stage in CHAIN}
    assert {run.info.status for run in found} == {"FINISHED"}


@pytest.mark.slow
def test_its_policy_can_be_judged_talked_to_promoted_and_loaded(folder, kfp_local):
    trained = folder / "runs" / "two" / "trained_policy" / "policy"
    judged = espalier_here("evaluate", str(trained), "--run", "runs/two", "--json", cwd=folder)
    assert json.loads(judged.stdout)["em"] == kfp_local["eval"]["trained"]["em"]
    assert json.loads(judged.stdout)["contamination"]["state"] == "checked"
    talk = espalier_here("chat", "runs/two", "--question", "which country is Lyon in?", cwd=folder)
    assert "answer " in talk.stdout
    tasks = folder / "runs" / "two" / "accepted" / "tasks" / "heldout.jsonl"
    task_id = json.loads(tasks.read_text().splitlines()[0])["task_id"]
    played = espalier_here("chat", "runs/two", "--task", task_id, cwd=folder)
    assert played.stdout.startswith("question ")
    assert "reward    outcome" in played.stdout
    refused = espalier_here("promote", "--run", "runs/two", cwd=folder)
    assert (refused.exit_code, "registry.min_questions" in refused.stderr) == (1, True)
    model = kfp_local["registry"]["name"]
    forced = espalier_here("promote", model, "--force", "a test", "--json", cwd=folder)
    assert json.loads(forced.stdout)["gate"] == "forced"
    loaded = espalier_here("load", f"{model}@champion", "--out", "champion", cwd=folder)
    assert loaded.exit_code == 0, loaded.stderr
    files = [path.name for path in trained.iterdir()]
    assert files
    for name in files:
        assert (folder / "champion" / name).read_bytes() == (trained / name).read_bytes()
