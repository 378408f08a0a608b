"""What a run of Kubeflow registered, promoted by its user, and served."""

import json

import pytest

from espalier.cluster.objects.serving import DEPLOYMENT
from espalier.registry.tracking import KUBEFLOW_RUN_TAG
from tests.cluster.kubeflow.form import MODEL
from tests.cluster.places import ClusterError, places
from tests.cluster.serving import (
    answered,
    awake,
    forwarded,
    outside,
    wait_until_served,
)


@pytest.fixture
def registered(finished):
    """The version that the finished run left, by the run in MLflow that names Kubeflow's."""
    from mlflow import MlflowClient

    with forwarded("espalier-mlflow", 5000) as uri:
        client = MlflowClient(uri)
        versions = client.search_model_versions(f"name='{MODEL}'")
        (version,) = [
            one
            for one in versions
            if client.get_run(one.run_id).data.tags.get(KUBEFLOW_RUN_TAG) == finished["run_id"]
        ]
    return version.version


@pytest.mark.slow
def test_a_registered_version_is_promoted_and_rolled_out(registered):
    with pytest.raises(ClusterError, match=r"registry\.min_questions"):
        outside("promote", MODEL, "--version", registered, "--json")
    reason = "a run of two training steps, to see it served"
    promoted = json.loads(
        outside("promote", MODEL, "--version", registered, "--force", reason, "--json")
    )
    assert promoted["version"] == registered
    with awake(places()):
        wait_until_served(places(), registered)
        with forwarded(DEPLOYMENT, 8000) as url:
            assert answered(places(), url, MODEL) == registered
