"""A promoted version's way through its canary, over HTTP and with a real registry."""

import json

import pytest

from espalier.cluster.objects.serving import Route
from espalier.config import CanaryConfig
from espalier.records import ServingError
from espalier.registry.promotion import promote, rollback
from espalier.serving.asking import questions_of
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.decision import Measure, Wait
from espalier.serving.following import Follower, HealthProbe, VersionSource
from espalier.serving.judging import CanaryJudge
from tests.fakes.serving_cluster import StandInCluster, connected, running, version_of

STEPS = (0.1, 0.5, 1.0)


@pytest.fixture
def cluster():
    return StandInCluster(replicas=2)


@pytest.fixture
def address(cluster):
    with running(cluster) as url:
        yield url


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    asked = [{"prompt": f"question {i}", "answers": ["Yes!"]} for i in range(8)]
    path.write_text("\n".join(json.dumps(one) for one in asked))
    return path


@pytest.fixture
def metrics():
    return ControllerMetrics()


@pytest.fixture
def new_follower(bench, address, questions, metrics):
    def start(**bounds):
        config = CanaryConfig(
            steps=STEPS, min_requests=8, step_s=0, questions=questions, questions_at_once=4,
            latency_slack_s=10, **bounds,
        )  # fmt: skip
        return Follower(
            VersionSource(bench.target.uri, bench.name),
            connected(address, bench.name),
            HealthProbe(),
            CanaryJudge(config),
            health_attempts=2,
            metrics=metrics,
        )

    return start


def settle(follower, *, at_most=60):
    for _ in range(at_most):
        if isinstance(step := follower.step(), Wait):
            return step
    raise AssertionError(step)


def force(bench, version):
    promote(bench.model, bench.gate(), version=version, force_reason="a test")


@pytest.fixture
def first_served(bench, cluster, new_follower):
    bench.register(0.6)
    force(bench, "1")
    settle(new_follower())
    bench.register(0.6)
    return cluster


def reasons(cluster):
    return [event["reason"] for event in cluster.events][2:]


def test_a_good_version_rises_to_all_and_takes_over(bench, first_served, new_follower):
    force(bench, "2")
    settle(new_follower())
    cluster = first_served
    # from a tenth to a half only the number of pods changes
    assert cluster.routes == [Route.BOTH, Route.CANARY, Route.STABLE]
    assert cluster.serving == version_of(cluster.canary) == "2"
    assert cluster.canary["spec"]["replicas"] == 0
    assert cluster.annotations == {"somebody/else": "kept", "espalier.dev/last-good": "2"}
    assert reasons(cluster) == [*["Canary"] * 4, "Rolling", "Served", "Retreating"]
    tags = bench.model.version("2").tags
    assert tags["espalier.serving"] == "served"
    assert "exact match 8 against 8 of 8" in tags["espalier.serving_score"]


def test_a_worse_version_goes_back_and_the_alias_stays(bench, first_served, new_follower, metrics):
    first_served.says["2"] = "no"
    force(bench, "2")
    settle(new_follower())
    cluster = first_served
    assert cluster.routes == [Route.BOTH, Route.STABLE]
    assert (cluster.serving, cluster.canary["spec"]["replicas"]) == ("1", 0)
    assert reasons(cluster) == ["Canary", "Canary", "CanaryFailed", "Retreating"]
    tags = bench.model.version("2").tags
    assert tags["espalier.serving"] == "failed"
    assert "at a share of 0.1: exact match 0 against 8" in tags["espalier.serving_reason"]
    assert "lost 8, won 0" in tags["espalier.serving_score"]
    assert bench.model.find("champion").version == "2"
    assert 'espalier_controller_rollouts_total{outcome="went_back"} 1.0' in metrics.text().decode()


def test_a_canary_that_does_not_answer_gets_no_traffic(bench, first_served, new_follower):
    first_served.answers["2"] = 500
    force(bench, "2")
    settle(new_follower())
    assert first_served.routes == []
    assert "HTTP 500" in bench.model.version("2").tags["espalier.serving_reason"]


def test_a_canary_that_does_not_start_says_why(bench, first_served, new_follower):
    first_served.plays["2"] = "stuck"
    force(bench, "2")
    settle(new_follower())
    assert first_served.routes == []
    assert "model.safetensors has other" in bench.model.version("2").tags["espalier.serving_reason"]


def test_a_new_controller_goes_on_where_the_last_one_was(bench, first_served, new_follower):
    force(bench, "2")
    for _ in range(40):
        follower = new_follower()
        step = follower.step()
        while isinstance(step, Measure):  # its answers are in one controller's life
            step = follower.step()
    assert isinstance(step, Wait)
    assert first_served.serving == "2"
    assert first_served.routes == [Route.BOTH, Route.CANARY, Route.STABLE]


def test_a_rolled_back_alias_ends_the_canary(bench, first_served, new_follower):
    force(bench, "2")
    follower = new_follower()
    while first_served.route is not Route.BOTH:
        follower.step()
    rollback(bench.model)
    settle(follower)
    assert first_served.route is Route.STABLE
    assert first_served.canary["spec"]["replicas"] == 0
    assert first_served.serving == "1"
    assert "espalier.dev/canary" not in first_served.annotations


def test_metrics_show_the_canary_and_its_score(bench, first_served, new_follower, metrics):
    force(bench, "2")
    follower = new_follower(alpha=0.04)
    while not isinstance(follower.step(), Measure):
        pass
    follower.step()
    told = metrics.text().decode()
    for line in (
        'espalier_controller_version{role="canary"} 2.0',
        "espalier_canary_active 1.0",
        "espalier_canary_step 1.0",
        "espalier_canary_weight 0.1",
        "espalier_canary_share 0.3333333333333333",
        "espalier_canary_questions 4.0",
        'espalier_canary_exact_match{track="stable"} 1.0',
        "espalier_canary_p_value 1.0",
    ):
        assert line in told.splitlines()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 1: is no JSON"),
        ('{"answers": ["a"]}', "line 1: write"),
        ('{"prompt": "a", "answers": "a"}', "line 1: write"),
        ('{"prompt": "a", "gold": "a"}', "line 1: write"),
        ("", "there is no question in it"),
    ],
)
def test_a_file_without_questions_is_an_error(tmp_path, line, complaint):
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    with pytest.raises(ServingError, match=complaint):
        questions_of(CanaryConfig(questions=path))
    with pytest.raises(ServingError, match="cannot be read"):
        questions_of(CanaryConfig(questions=tmp_path / "absent"))
