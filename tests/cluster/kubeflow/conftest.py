"""The Kubeflow Pipelines that `python -m tests.cluster kubeflow` started."""

import json
import os

import pytest

from tests.cluster.chain import wake_servers
from tests.cluster.kubeflow import form, servers
from tests.cluster.kubeflow.runs import Kubeflow
from tests.cluster.places import MARK, places


@pytest.fixture(scope="session")
def kubeflow():
    if "ESPALIER_TEST_KUBEFLOW" not in os.environ or MARK not in os.environ:
        pytest.skip("no Kubeflow: `make test-kubeflow SOURCES=DIR` builds and starts one")
    wake_servers(places())
    return Kubeflow(os.environ["ESPALIER_TEST_KUBEFLOW"], os.environ.get("KF_PIPELINES_TOKEN"))


@pytest.fixture(scope="session")
def version(kubeflow, tmp_path_factory):
    """Of a pipeline that was compiled for the profile laptop and uploaded."""
    return form.uploaded(kubeflow, tmp_path_factory.mktemp("compiled"), profile="laptop")


@pytest.fixture(scope="session")
def started(kubeflow, version):
    """Id of a run of every stage, from the run form with changed fields.

    ESPALIER_TEST_KUBEFLOW_RUN names one that was made before, while tests are written.
    """
    if made := os.environ.get("ESPALIER_TEST_KUBEFLOW_RUN"):
        return made
    return kubeflow.post("runs", form.request(kubeflow, version, "every-stage", form.TYPED))[
        "run_id"
    ]


@pytest.fixture(scope="session")
def finished(kubeflow, started):
    """The run of every stage, which came to its end."""
    run = kubeflow.wait(started, within_s=2400)
    assert run["state"] == "SUCCEEDED", run
    return run


@pytest.fixture(scope="session")
def stored(finished):
    """Name -> content, of the objects that the launcher wrote for the run."""
    store = servers.store()
    found = store.list_objects(servers.BUCKET, recursive=True)
    names = [one.object_name for one in found if finished["run_id"] in one.object_name]
    return {name: store.get_object(servers.BUCKET, name).read() for name in names}


@pytest.fixture(scope="session")
def manifests(stored):
    """Name -> manifest of the artifact that a stage left below it."""
    return {
        name: json.loads(content)
        for name, content in stored.items()
        if name.endswith("/manifest.json")
    }
