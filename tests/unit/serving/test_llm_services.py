"""The same way through a canary with KServe's objects, and where versions lie in S3."""

from dataclasses import replace

import pytest

from espalier.cluster.objects.llm_services import CANARY, STABLE, weights
from espalier.config import CanaryConfig
from espalier.records import ServingError
from espalier.registry.promotion import promote
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.decision import RolloutProgress, Wait
from espalier.serving.following import Follower, HealthProbe, VersionSource
from espalier.serving.judging import CanaryJudge
from espalier.serving.llm_services import member_progress, s3_address
from tests.fakes.kserve_cluster import StandInKserve, connected, is_stopped
from tests.fakes.serving_cluster import running

CONFIG = CanaryConfig(
    steps=(0.1, 0.5, 1.0), min_requests=4, step_s=0, questions_at_once=4, latency_slack_s=10,
)  # fmt: skip


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
            CanaryJudge(CONFIG),
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
    assert first_served.members.keys() == {STABLE}
    member = first_served.members[STABLE]
    assert member["spec"]["model"] == {
        "name": bench.name,
        "uri": "s3://espalier-mlflow/1/r/artifacts/models/d/policy",
    }
    assert member["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "espalier"
    assert bench.model.version("1").tags["espalier.serving"] == "served"


def test_a_good_version_rises_by_weights_of_the_group(bench, first_served, follower):
    force(bench, "2")
    settle(follower)
    rising = first_served.shares[: first_served.shares.index(1.0) + 1]
    assert rising == sorted(rising)
    assert {0.0, 0.1, 0.5, 1.0} <= {*rising}
    assert first_served.shares[-1] == 0.0
    assert (first_served.weight(STABLE), first_served.weight(CANARY)) == (1000, 0)
    assert first_served.serving == "2"
    assert is_stopped(first_served.members[CANARY])


def test_a_version_that_leaves_questions_goes_back(bench, first_served, follower):
    force(bench, "2")
    while first_served.shares[-1:] != [0.1]:
        follower.step()
    first_served.answers["2"] = 500
    settle(follower)
    assert first_served.shares[-1] == 0.0
    assert first_served.serving == "1"
    assert is_stopped(first_served.members[CANARY])
    assert "max_error_share" in bench.model.version("2").tags["espalier.serving_reason"]


def member(version="2", **conditions):
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
        (member(Ready="True"), workload(), RolloutProgress.READY),
        (member(Ready="False"), workload(), RolloutProgress.ROLLING),
        (member(), workload(), RolloutProgress.ROLLING),
        (member(Ready="True"), None, RolloutProgress.ROLLING),
        # KServe says Ready of the former version's pods
        (member(Ready="True"), workload("1"), RolloutProgress.ROLLING),
        (member(Ready="True"), workload(updated=1), RolloutProgress.ROLLING),
    ],
)
def test_ready_means_pods_of_the_version_alone(found, made, progress):
    seen = member_progress(found, made)
    assert (seen.progress, seen.can_answer) == (progress, progress is RolloutProgress.READY)


@pytest.mark.parametrize(("share", "pair"), [(0, (1000, 0)), (0.1, (900, 100)), (1, (0, 1000))])
def test_weights_are_shares_of_a_thousand(share, pair):
    assert weights(share) == pair


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
    with pytest.raises(ServingError, match=r'kubernetes\.serving = "deployment"'):
        s3_address("/srv/mlruns/1", "s3://espalier-mlflow")
