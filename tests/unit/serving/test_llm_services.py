"""Following the champion with KServe's objects, and where versions lie in S3."""

from dataclasses import replace

import pytest

from espalier.records import ServingError
from espalier.registry.promotion import promote
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.decision import RolloutProgress, Wait
from espalier.serving.following import Follower, HealthProbe, VersionSource
from espalier.serving.llm_services import s3_address, service_progress
from tests.fakes.kserve_cluster import StandInKserve, connected
from tests.fakes.serving_cluster import running


@pytest.fixture
def cluster():
    return StandInKserve()


class Listed(VersionSource):
    """Versions as an MLflow server lists them that keeps artifacts in S3."""

    def version(self, number):
        found = super().version(number)
        return found and replace(found, location="mlflow-artifacts:/1/r/artifacts/models/d/policy")


@pytest.fixture
def follower(bench, cluster):
    with running(cluster) as url:
        yield Follower(
            Listed(bench.target.uri, bench.name),
            connected(url, bench.name),
            HealthProbe(),
            health_attempts=2,
            metrics=ControllerMetrics(),
        )


def settle(follower, *, at_most=60):
    for _ in range(at_most):
        if isinstance(step := follower.step(), Wait):
            return
    raise AssertionError(step)


def force(bench, version):
    promote(bench.model, bench.gate(), version=version, force_reason="a test")


@pytest.fixture
def first_served(bench, cluster, follower):
    bench.register(0.6)
    force(bench, "1")
    settle(follower)
    bench.register(0.6)
    return cluster


def test_the_first_version_is_made_and_served(bench, first_served):
    service = first_served.service
    assert service["metadata"]["name"] == "espalier-serving"
    assert service["spec"]["model"] == {
        "name": bench.name,
        "uri": "s3://espalier-mlflow/1/r/artifacts/models/d/policy",
    }
    assert service["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "espalier"
    assert bench.model.version("1").tags["espalier.serving"] == "served"


def test_the_next_version_keeps_somebody_elses_share(bench, first_served, follower):
    route = {"group": "trial", "weight": 9}
    first_served.service["spec"]["router"]["route"] |= route
    force(bench, "2")
    settle(follower)
    assert first_served.serving == "2"
    assert first_served.annotations["espalier.dev/last-good"] == "2"
    assert first_served.service["spec"]["router"]["route"].items() >= route.items()


def test_a_version_that_does_not_answer_goes_back(bench, first_served, follower):
    first_served.answers["2"] = 500
    force(bench, "2")
    settle(follower)
    assert first_served.serving == "1"
    assert "HTTP 500" in bench.model.version("2").tags["espalier.serving_reason"]


def service(version="2", **conditions):
    return {
        "metadata": {"generation": 3, "annotations": {"espalier.dev/model-version": version}},
        "status": {
            "observedGeneration": 3,
            "conditions": [{"type": kind, "status": is_so} for kind, is_so in conditions.items()],
        },
    }


def workload(version="2", updated=2):
    template = {"metadata": {"annotations": {"espalier.dev/model-version": version}}}
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": 2, "template": template},
        "status": {
            "observedGeneration": 1, "replicas": 2, "availableReplicas": 2,
            "updatedReplicas": updated,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "made", "progress"),
    [
        (service(Ready="True"), workload(), RolloutProgress.READY),
        (service(Ready="False"), workload(), RolloutProgress.ROLLING),
        (service(), workload(), RolloutProgress.ROLLING),
        (service(Ready="True"), None, RolloutProgress.ROLLING),
        # KServe says Ready of the former version's pods
        (service(Ready="True"), workload("1"), RolloutProgress.ROLLING),
        (service(Ready="True"), workload(updated=1), RolloutProgress.ROLLING),
    ],
)
def test_ready_means_pods_of_the_version_alone(found, made, progress):
    assert service_progress(found, made).progress is progress


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("s3://b/p", "s3://b/p"),
        ("mlflow-artifacts:/1/p", "s3://espalier-mlflow/1/p"),
        ("mlflow-artifacts://mlflow:5000/1/p", "s3://espalier-mlflow/1/p"),
    ],
)
def test_files_of_a_version_are_found_in_s3(location, address):
    assert s3_address(location, "s3://espalier-mlflow/") == address


def test_a_version_that_is_not_in_s3_is_refused():
    with pytest.raises(ServingError, match=r"kubernetes\.serving"):
        s3_address("/srv/mlruns/1", "s3://espalier-mlflow")
