"""Kubeflow's own MLflow plugin, switched on: its runs of tasks are the parents of ours.

Switched off, as it is shipped, `test_every_stage` shows ours below one of our own.
"""

import pytest

from tests.cluster.kubeflow import backend
from tests.cluster.kubeflow.runs import of_runs, pod_of, submitted, wait_until
from tests.cluster.places import places
from tests.cluster.serving import mlflow_runs
from tests.unit.k8s.allowed_verbs import PIPELINE

_SETTINGS = {
    "mlflow": {
        "endpoint": f"http://espalier-mlflow.{PIPELINE}.svc:5000",
        "settings": {"authType": "none", "injectUserEnvVars": True},
    }
}
_WITHIN_S = 900
_PARENT = "mlflow.parentRunId"


@pytest.fixture(scope="module")
def stopped(kubeflow):
    """Id of a run that was made with the plugin on, and stopped in its fourth step."""
    with backend.plugins(places(), _SETTINGS):
        made = submitted("seed=14", name="with-plugin")
        pod_of(made, "validate", within_s=_WITHIN_S)
        # Kubeflow ends the runs below its own, and no further: that of a part's task is the stage's
        # to end, once the stage has begun
        wait_until(lambda: "validate" in map(_stage, _tree(made)), "validate opens no run")
        of_runs("stop", made)
        kubeflow.wait(made, within_s=_WITHIN_S)
        yield made


@pytest.fixture(scope="module")
def tracked(stopped):
    """The run of MLflow for all, those of tasks, and by the name of a task what is below it.

    Below a task that is a part of the pipeline are those of the part's tasks.
    """
    found = mlflow_runs()
    (parent,) = [run for run in found if run.data.tags.get("kfp.pipeline_run_id") == stopped]
    of_parts = _below(found, parent)
    of_tasks = [*of_parts, *(task for part in of_parts for task in _below(found, part))]
    return parent, of_tasks, {task.info.run_name: _below(found, task) for task in of_tasks}


def _tree(made):
    """The run of MLflow for all, and what is below it."""
    found = mlflow_runs()
    tree = [run for run in found if run.data.tags.get("kfp.pipeline_run_id") == made]
    for run in tree:  # what is found below is looked at in its turn
        tree += _below(found, run)
    return tree


def _stage(run):
    return run.data.tags.get("espalier.stage")


def _below(found, parent):
    return [run for run in found if run.data.tags.get(_PARENT) == parent.info.run_id]


@pytest.mark.slow
def test_kubeflow_shows_its_run_of_mlflow(kubeflow, stopped, tracked):
    parent, *_ = tracked
    entries = kubeflow.run(stopped)["plugins_output"]["mlflow"]["entries"]
    assert entries["root_run_id"]["value"] == parent.info.run_id


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ingest", "synthesize"])
def test_a_stage_is_below_the_run_of_its_task(tracked, stage):
    *_, of_stages = tracked
    (ours,) = of_stages[stage]
    assert _stage(ours) == stage
    assert ours.info.status == "FINISHED"


@pytest.mark.slow
def test_no_parent_of_our_own_is_made_beside(stopped, tracked):
    assert tracked
    ours = [run for run in mlflow_runs() if run.data.tags.get("kubeflow.run_id") == stopped]
    assert ours == []


@pytest.mark.slow
def test_a_stopped_run_is_ended_in_mlflow(stopped):
    def ended():
        return "RUNNING" not in {run.info.status for run in _tree(stopped)}

    wait_until(ended, "a run of MLflow is RUNNING for ever", 120)
