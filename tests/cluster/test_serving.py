"""Promotion rolls the serving Deployment, and back, where kubelet and controllers are real."""

import time

import pytest
from kubernetes import client

from espalier.cluster.objects.serving import DEPLOYMENT
from espalier.policy.loading import save_policy
from espalier.records import publishing
from espalier.registry import TrackingTarget
from espalier.registry.promotion import promote
from tests.cluster import objects
from tests.cluster.places import places
from tests.cluster.serving import answered, forgotten, forwarded
from tests.factories.tiny import tiny_policy
from tests.unit.k8s.allowed_verbs import PIPELINE
from tests.unit.registry import conftest as registry

MODEL = "espalier-search-agent"
SERVERS_S, ROLL_S = 600, 900


@pytest.fixture
def bench(own_cluster, tmp_path):
    """Registers versions of the tiny policy in the cluster's own MLflow."""

    def write(path, weights):
        with publishing(path, registry.provenance("train")) as draft:
            save_policy(tiny_policy(seed=len(weights)), draft.path / "policy")

    objects.wake(places(), "espalier-minio", "espalier-mlflow", timeout_s=SERVERS_S)
    with forwarded("espalier-mlflow", 5000) as uri:
        target = TrackingTarget(uri, "tests")
        yield registry.Workbench(tmp_path, target, MODEL, write_policy=write)


@pytest.fixture
def deployment(administrator):
    api = client.AppsV1Api(administrator)

    def read():
        return api.read_namespaced_deployment(DEPLOYMENT, PIPELINE)

    with forgotten(places()):
        # a version that cannot start is to be told from one that is slow within the test's time
        deadline = {"spec": {"progressDeadlineSeconds": 120}}
        api.patch_namespaced_deployment(DEPLOYMENT, PIPELINE, deadline)
        yield read


def wait_for(holds, read):
    end = time.monotonic() + ROLL_S
    while not holds(read()):
        assert time.monotonic() < end, read()
        time.sleep(2)


def version(found):
    return (found.spec.template.metadata.annotations or {}).get("espalier.dev/model-version")


def note(found, name):
    return (found.metadata.annotations or {}).get(f"espalier.dev/{name}")


def force(bench, number):
    promote(bench.model, bench.gate(), version=number, force_reason="a test of the roll-out")


@pytest.mark.slow
def test_promotion_rolls_out_and_a_failing_version_rolls_back(bench, deployment):
    first = bench.register(0.6)
    force(bench, first)
    wait_for(lambda found: note(found, "last-good") == first, deployment)
    with forwarded(DEPLOYMENT, 8000) as url:
        assert answered(places(), url, MODEL) == first
    second = bench.register(0.6)
    bench.model.point("champion", bench.model.version(second))  # past the gate
    time.sleep(30)
    assert version(deployment()) == first
    assert bench.model.version(second).tags["espalier.serving"] == "refused"
    # files that are not those that were registered: the pods refuse them, and say so
    bench.model.store(bench.model.version(second), _other_config(bench), "policy")
    force(bench, second)
    wait_for(lambda found: note(found, "failed") is not None, deployment)
    wait_for(lambda found: version(found) == first, deployment)
    reason = bench.model.version(second).tags["espalier.serving_reason"]
    assert "differs from the registered file" in reason


def _other_config(bench):
    path = bench.root / "config.json"
    path.write_text("{}")
    return path
