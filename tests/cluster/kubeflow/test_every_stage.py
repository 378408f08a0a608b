"""A run of every stage: what a user finds of it in Kubeflow, in S3 and in MLflow."""

import pytest

from espalier.chain import STAGES
from tests.cluster.kubeflow.form import MODEL
from tests.cluster.kubeflow.runs import objects_of, tasks
from tests.cluster.serving import forwarded


@pytest.mark.slow
def test_every_stage_succeeds(kubeflow, finished):
    # read anew: a run may be said to have ended before its last task is
    states = tasks(kubeflow.run(finished["run_id"]))
    assert {states.get(stage.replace("_", "-")) for stage in STAGES} == {"SUCCEEDED"}, states


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_leaves_its_artifact_in_s3(manifests, stage):
    (found,) = [name for name, one in manifests.items() if one["producer"] == stage]
    assert f"/{stage.replace('_', '-')}/" in found
    assert found.endswith(f"/{STAGES[stage].output}/manifest.json")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["validate", "warm_start", "train", "evaluate"])
def test_a_stage_shows_a_page(stored, stage):
    pages = [
        content
        for name, content in stored.items()
        if f"/{stage.replace('_', '-')}/" in name and b"<html" in content[:2000].lower()
    ]
    assert pages, [name for name in stored if stage.replace("_", "-") in name]
    assert not any(b'src="http' in page for page in pages), "a page needs the network"


@pytest.mark.slow
def test_stages_are_mlflow_runs_below_one(finished, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    with forwarded("espalier-mlflow", 5000) as uri:
        client = mlflow.MlflowClient(uri)
        experiments = [one.experiment_id for one in client.search_experiments()]
        found = client.search_runs(experiments)
        parents = [run for run in found if finished["run_id"] in run.data.tags.values()]
        parents = [run for run in parents if "mlflow.parentRunId" not in run.data.tags]
        assert len(parents) == 1
        (parent,) = parents
        nested = [
            run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
        ]
        assert {run.info.status for run in [parent, *nested]} == {"FINISHED"}
        assert {run.info.run_name for run in nested} >= set(STAGES)
        version = client.get_model_version_by_alias(MODEL, "challenger")
        assert version.run_id == parent.info.run_id


@pytest.mark.slow
def test_no_step_has_a_smaller_disk_than_its_profile_says(finished):
    limits = {
        container["resources"].get("limits", {}).get("ephemeral-storage")
        for pod in objects_of(finished["run_id"])
        for container in pod["spec"]["containers"]
        if "espalier.dev/stage" in pod["metadata"]["labels"]
    }
    assert "4Gi" not in limits


@pytest.mark.slow
def test_logs_of_a_stage_are_its_own(finished, stored):
    """KFP's root logger passes on what every library says."""
    logs = [
        content.decode(errors="replace").splitlines()
        for name, content in stored.items()
        if "/validate/" in name and "executor-logs" in name
    ]
    assert logs
    (lines,) = logs
    noise = [line for line in lines if "INFO" in line and "great_expectations" in line]
    assert noise == []
    assert any(line.startswith("validate") for line in lines)
