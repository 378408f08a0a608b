"""What a run of Kubeflow registered, promoted by its user, and served."""

import json

import pytest

from espalier.cluster.objects.serving import DEPLOYMENT
from tests.cluster.places import ClusterError, places
from tests.cluster.serving import (
    answered,
    awake,
    forwarded,
    mlflow_runs,
    outside,
    wait_until_served,
)

MODEL = "espalier-smoke"


@pytest.fixture
def registered(finished):
    """The version that the finished run left as challenger."""
    (parent,) = [
        run
        for run in mlflow_runs()
        if run.data.tags.get("kubeflow.run_id") == finished["run_id"]
        and "mlflow.parentRunId" not in run.data.tags
    ]
    listed = json.loads(outside("versions", MODEL, "--json"))
    (version,) = [one for one in listed if one["run_id"] == parent.info.run_id]
    return version["version"]


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
