"""A promoted version's way through its canary, over HTTP and with a real registry."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from espalier.cluster.objects.serving import Route
from espalier.config import CanaryConfig
from espalier.records import RegistryAwayError, ServingError
from espalier.registry.promotion import promote, rollback
from espalier.serving.asking import MAX_TRIES, Address, Asker, Question, questions_of
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.decision import EndCanary, Measure, Retreat, Wait
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


class Clock:
    """The time of every controller of a test."""

    def __init__(self):
        self.now = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


class Interrupted(VersionSource):
    """A registry that is away while a test says so."""

    is_away = False

    def champion(self):
        self._reach()
        return super().champion()

    def version(self, number):
        self._reach()
        return super().version(number)

    def mark(self, number, told, score=""):
        self._reach()
        super().mark(number, told, score)

    def _reach(self):
        if Interrupted.is_away:
            raise RegistryAwayError("MLflow is away")


@pytest.fixture
def mlflow(monkeypatch):
    """Whether MLflow is away, as `mlflow(is_away=True)` says."""
    monkeypatch.setattr(Interrupted, "is_away", False)
    return lambda *, is_away: monkeypatch.setattr(Interrupted, "is_away", is_away)


@pytest.fixture
def new_follower(bench, address, questions, metrics, clock):
    def start(**bounds):
        config = CanaryConfig(
            steps=STEPS, min_requests=8, step_s=0, questions=questions, questions_at_once=4,
            latency_slack_s=10, **bounds,
        )  # fmt: skip
        return Follower(
            Interrupted(bench.target.uri, bench.name),
            connected(address, bench.name),
            HealthProbe(),
            CanaryJudge(config, now=clock),
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


def test_a_question_that_the_former_version_refuses_is_set_aside(bench, first_served, new_follower):
    first_served.refuses["1"] = "question 3"
    force(bench, "2")
    settle(new_follower(), at_most=80)
    assert first_served.serving == "2"
    score = bench.model.version("2").tags["espalier.serving_score"]
    assert "exact match 7 against 7 of 7" in score
    assert score.endswith(f"{MAX_TRIES} left by the former version")


def test_questions_without_an_answer_are_asked_again_three_times(address, first_served, bench):
    first_served.refuses["1"] = "b"
    force(bench, "2")
    asker = Asker(
        CanaryConfig(questions_at_once=1), [Question({"prompt": p}, ("yes",)) for p in "abc"]
    )
    stable = Address(f"{address}/stable", f"models:/{bench.name}/1")
    asked = [asker.ask(stable, stable)[0].question for _ in range(9)]
    assert asked == [0, 1, 2, 1, 1, 0, 2, 0, 2]
    assert asker.graded == 2


@pytest.mark.parametrize("play", ["rolling", "unseen"])
def test_a_canary_that_never_comes_up_goes_back(bench, first_served, new_follower, clock, play):
    first_served.plays["2"] = play
    force(bench, "2")
    follower = new_follower(max_step_s=600)
    settle(follower)
    clock.now += timedelta(seconds=599)
    assert isinstance(new_follower(max_step_s=600).step(), Wait)
    clock.now += timedelta(seconds=1)
    settle(new_follower(max_step_s=600))  # whoever looks
    assert first_served.canary["spec"]["replicas"] == 0
    tags = bench.model.version("2").tags
    assert tags["espalier.serving"] == "failed"
    assert "max_step_s=600 s: its pods were not all ready" in tags["espalier.serving_reason"]


def test_a_stable_track_that_leaves_all_questions_ends_the_canary(
    bench, first_served, new_follower, clock
):
    first_served.answers["1"] = 503
    force(bench, "2")
    follower = new_follower()
    while not isinstance(follower.step(), Measure):
        pass
    assert isinstance(follower.step(), Measure)
    clock.now += timedelta(hours=1)
    settle(follower)
    reason = bench.model.version("2").tags["espalier.serving_reason"]
    assert "answered 0 of the serving.canary.min_requests=8 questions, and left 8" in reason
    assert "HTTP 503" in reason


def judged(follower):
    """Go on until the canary has traffic and is judged."""
    while not isinstance(follower.step(), Measure):
        pass


def went_on(follower):
    """What it does before it has to wait for MLflow."""
    done = []
    for _ in range(20):
        try:
            done.append(type(follower.step()))
        except RegistryAwayError:
            return done
    raise AssertionError(done)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_worse_canary_goes_back_while_mlflow_is_away(
    bench, first_served, new_follower, mlflow, restarts
):
    force(bench, "2")
    follower = new_follower()
    judged(follower)
    first_served.answers["2"] = 500
    mlflow(is_away=True)
    if restarts:
        follower = new_follower()
        assert isinstance(follower.step(), Measure)
    went_on(follower)
    assert "CanaryFailed" in reasons(first_served)
    assert went_on(follower) == [Retreat, EndCanary]
    assert first_served.routes == [Route.BOTH, Route.STABLE]
    assert first_served.canary["spec"]["replicas"] == 0
    assert bench.model.version("2").tags["espalier.serving"] == "canary"
    mlflow(is_away=False)
    settle(new_follower() if restarts else follower)
    tags = bench.model.version("2").tags
    assert tags["espalier.serving"] == "failed"
    assert "HTTP 500" in tags["espalier.serving_reason"]


def test_a_canary_gets_no_more_while_mlflow_is_away(bench, first_served, new_follower, mlflow):
    force(bench, "2")
    follower = new_follower()
    judged(follower)
    mlflow(is_away=True)
    assert set(went_on(follower)) == {Measure}
    assert first_served.annotations["espalier.dev/canary-step"] == "1"
    assert first_served.routes == [Route.BOTH]
    mlflow(is_away=False)
    settle(follower)
    assert first_served.serving == "2"


def test_a_rollback_that_was_seen_is_carried_out_without_mlflow(
    bench, first_served, new_follower, mlflow
):
    force(bench, "2")
    follower = new_follower()
    judged(follower)
    rollback(bench.model)
    first_served.faults = [500, 500]  # the API server fails first
    with pytest.raises(ServingError):
        follower.step()
    mlflow(is_away=True)
    first_served.faults = []
    assert [type(follower.step()) for _ in range(2)] == [Retreat, EndCanary]


def test_a_version_that_took_over_is_marked_after_an_outage(
    bench, first_served, new_follower, mlflow
):
    force(bench, "2")
    follower = new_follower()
    while first_served.serving != "2":
        follower.step()
    mlflow(is_away=True)
    with pytest.raises(RegistryAwayError):
        follower.step()
    assert first_served.annotations["espalier.dev/last-good"] == "2"
    mlflow(is_away=False)
    settle(new_follower())
    assert bench.model.version("2").tags["espalier.serving"] == "served"


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
