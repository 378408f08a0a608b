"""Kubeflow's own MLflow plugin, switched on: its runs of tasks are the parents of ours."""

import pytest

from tests.cluster.kubeflow import backend
from tests.cluster.kubeflow.runs import of_runs, pod_of, submitted
from tests.cluster.places import places
from tests.cluster.serving import mlflow_runs
from tests.unit.k8s.allowed_verbs import PIPELINE

_SETTINGS = {
    "mlflow": {
        "endpoint": f"http://espalier-mlflow.{PIPELINE}.svc:5000",
        "settings": {"authType": "none", "injectUserEnvVars": True},
    }
}
_WITHIN_S = 600


@pytest.fixture(scope="module")
def run_id(kubeflow):
    """A run that came to its third step, and the plugin was on when it was made."""
    with backend.plugins(places(), _SETTINGS):
        made = submitted("seed=14", name="with-plugin")
        pod_of(made, "synthesize", within_s=_WITHIN_S)
        yield made
        of_runs("stop", made)
        kubeflow.wait(made, within_s=_WITHIN_S)


@pytest.mark.slow
def test_stages_nest_under_the_runs_of_their_tasks(kubeflow, run_id):
    output = kubeflow.run(run_id)["plugins_output"]["mlflow"]["entries"]
    print(output)
    found = {run.info.run_id: run for run in mlflow_runs()}
    raise AssertionError([(r.info.run_name, r.data.tags) for r in found.values()])
