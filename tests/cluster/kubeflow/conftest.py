"""The Kubeflow Pipelines that `python -m tests.cluster kubeflow` started."""

import os

import pytest

from tests.cluster.chain import wake_servers
from tests.cluster.kubeflow.runs import Kubeflow, submitted
from tests.cluster.places import MARK, places


@pytest.fixture(scope="session")
def kubeflow():
    if "ESPALIER_TEST_KUBEFLOW" not in os.environ or MARK not in os.environ:
        pytest.skip("no Kubeflow: `make test-kubeflow SOURCES=DIR` builds and starts one")
    wake_servers(places())
    return Kubeflow(os.environ["ESPALIER_TEST_KUBEFLOW"], os.environ["KF_PIPELINES_TOKEN"])


@pytest.fixture(scope="session")
def finished(kubeflow):
    """A run of every stage, from the command line, that came to its end.

    ESPALIER_TEST_KUBEFLOW_RUN names one that was made before, while tests are written.
    """
    run_id = os.environ.get("ESPALIER_TEST_KUBEFLOW_RUN") or submitted(name="every-stage")
    run = kubeflow.wait(run_id, within_s=1800)
    assert run["state"] == "SUCCEEDED", run
    return run
