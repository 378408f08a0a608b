import random
import re
import threading

import pytest

from espalier.config import ControllerConfig
from espalier.records import RegistryAwayError, RegistryError, ServingError
from espalier.registry.promotion import promote, rollback
from espalier.serving.controller import Heartbeat, follow
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.decision import Refuse, Wait
from espalier.serving.following import Follower, HealthProbe, VersionSource
from tests.fakes.serving_cluster import StandInCluster, connected, running

REASON = "the gate's suite was wrong"


@pytest.fixture
def cluster():
    return StandInCluster()


@pytest.fixture
def address(cluster):
    with running(cluster) as url:
        yield url


@pytest.fixture
def new_follower(bench, address):
    """A controller that has just started; a new one remembers nothing."""

    def start(metrics=None, *, registry=bench.target.uri, api=address):
        return Follower(
            VersionSource(registry, bench.name),
            connected(api, bench.name),
            HealthProbe(),
            health_attempts=3,
            metrics=metrics or ControllerMetrics(),
        )

    return start


def settle(new_follower, *, at_most=12):
    """Steps until there is nothing to do, each of a controller that was started anew."""
    for _ in range(at_most):
        follower = new_follower()
        step = follower.step()
        for _ in range(3):  # a probe counts its faults in one controller's life
            if isinstance(step, Wait | Refuse):
                return step
            step = follower.step()
    raise AssertionError(f"no end after {at_most} steps, the last one {step}")


def force(bench, version):
    return promote(bench.model, bench.gate(), version=version, force_reason=REASON)


@pytest.fixture
def serve_forced(bench, new_follower):
    """Registers, forces and settles one version after the other."""

    def served(*versions):
        for version in versions:
            bench.register(0.6)
            force(bench, version)
            settle(new_follower)

    return served


def reasons(cluster):
    return [event["reason"] for event in cluster.events]


def tags(bench, version):
    return bench.model.version(version).tags


def test_a_promoted_version_is_rolled_out_and_recorded(bench, cluster, new_follower):
    bench.lead(0.6)
    settle(new_follower)
    assert cluster.environment["ESPALIER_MODEL"] == f"models:/{bench.name}/1"
    assert cluster.environment["ESPALIER_POLICY_DIGEST"] == bench.model.version("1").policy_digest
    assert cluster.annotations == {"somebody/else": "kept", "espalier.dev/last-good": "1"}
    assert reasons(cluster) == ["Rolling", "Served"]
    assert tags(bench, "1")["espalier.serving"] == "served"
    assert "MLFLOW_TRACKING_URI" in cluster.environment


def test_looking_again_changes_nothing_whoever_looks(bench, cluster, new_follower):
    bench.register(0.6)
    assert isinstance(new_follower().step(), Wait)
    assert (cluster.rolls, cluster.events) == (0, []), "nothing was promoted yet"
    promote(bench.model, bench.gate())
    settle(new_follower)
    seen = len(cluster.requests)
    for _ in range(3):
        assert isinstance(new_follower().step(), Wait)
    assert {verb for verb, _ in cluster.requests[seen:]} == {"get"}
    assert cluster.rolls == 1


def test_an_alias_moved_past_the_gate_changes_nothing(bench, cluster, new_follower):
    bench.lead(0.6)
    settle(new_follower)
    bench.register(0.3)
    bench.model.point("champion", bench.model.version("2"))
    for _ in range(3):
        assert isinstance(new_follower().step(), Refuse)
    assert (cluster.serving, cluster.rolls) == ("1", 1)
    assert reasons(cluster) == ["Rolling", "Served", "Refused"]
    assert "gate" in cluster.events[-1]["message"]
    assert tags(bench, "2")["espalier.serving"] == "refused"


def test_a_forced_promotion_is_served_with_its_reason(bench, cluster, new_follower):
    bench.register(0.1)
    force(bench, "1")
    settle(new_follower)
    assert cluster.serving == "1"
    assert REASON in cluster.events[-1]["message"]


def test_a_version_that_does_not_start_is_rolled_back(bench, cluster, serve_forced):
    cluster.plays["2"] = "stuck"
    serve_forced("1", "2")
    assert cluster.serving == "1"
    assert reasons(cluster) == ["Rolling", "Served", "Rolling", "RolloutFailed", "Rolling"]
    for told in (
        cluster.events[3]["message"],
        cluster.annotations["espalier.dev/failed-reason"],
        tags(bench, "2")["espalier.serving_reason"],
    ):
        assert "timed out progressing" in told
        assert "CrashLoopBackOff" in told
    assert cluster.annotations["espalier.dev/last-good"] == "1"


def test_a_failed_version_is_tried_again_when_promoted_again(
    bench, cluster, new_follower, serve_forced
):
    cluster.plays["2"] = "stuck"
    serve_forced("1", "2")
    rolls = cluster.rolls
    cluster.plays["2"] = "ready"
    settle(new_follower)
    assert cluster.rolls == rolls
    rollback(bench.model)
    force(bench, "2")
    settle(new_follower)
    assert cluster.serving == "2"
    assert "espalier.dev/failed" not in cluster.annotations


def test_roll_outs_and_what_became_of_them_are_counted(bench, cluster, new_follower):
    metrics = ControllerMetrics()
    follower = new_follower(metrics)
    bench.register(0.6)
    bench.model.point("champion", bench.model.version("1"))  # past the gate
    follower.step()
    assert shown(metrics, "rollouts_total") == {"refused": 1}
    assert shown(metrics, "version") == {"champion": 1}
    force(bench, "1")
    while "last_good" not in shown(metrics, "version"):
        follower.step()
    bench.register(0.6)
    cluster.plays["2"] = "stuck"
    force(bench, "2")
    while not isinstance(follower.step(), Wait) or cluster.serving != "1":
        pass
    assert shown(metrics, "version") == {"champion": 2, "last_good": 1, "deployed": 1}
    told = shown(metrics, "rollouts_total")
    assert told == {"refused": 1, "rolling": 2, "served": 1, "failed": 1, "rolled_back": 1}


def shown(metrics, name):
    """Values of a metric of the controller by its label, without zeros."""
    line = re.compile(rf'espalier_controller_{name}\{{\w+="(\w+)"\}} (\S+)')
    found = {label: float(value) for label, value in line.findall(metrics.text().decode())}
    return {label: value for label, value in found.items() if value}


def test_ready_pods_that_do_not_answer_are_rolled_back(bench, cluster, serve_forced):
    cluster.answers["2"] = 500
    serve_forced("1", "2")
    assert cluster.serving == "1"
    assert "HTTP 500" in tags(bench, "2")["espalier.serving_reason"]


def test_a_service_that_is_slow_to_answer_gets_another_chance(bench, cluster, new_follower):
    bench.lead(0.6)
    follower = new_follower()
    follower.step()
    cluster.answers["1"] = 503
    follower.step()
    follower.step()
    del cluster.answers["1"]
    follower.step()
    assert cluster.annotations["espalier.dev/last-good"] == "1"


def test_what_became_of_a_version_is_tagged_after_an_outage(
    bench, cluster, new_follower, monkeypatch
):
    bench.lead(0.6)
    follower = new_follower()
    follower.step()

    def away(*_):
        raise RegistryAwayError("MLflow is away")

    with monkeypatch.context() as outage:
        outage.setattr(VersionSource, "mark", away)
        with pytest.raises(RegistryAwayError):
            follower.step()
    assert cluster.annotations["espalier.dev/last-good"] == "1"
    assert "espalier.serving" not in tags(bench, "1")
    settle(new_follower)
    assert tags(bench, "1")["espalier.serving"] == "served"
    assert reasons(cluster) == ["Rolling", "Served"]


def test_without_a_good_version_a_failure_stays(bench, cluster, new_follower):
    bench.lead(0.6)
    cluster.plays["1"] = "stuck"
    settle(new_follower)
    assert (cluster.serving, reasons(cluster)) == ("1", ["Rolling", "RolloutFailed"])


def test_a_roll_out_that_is_under_way_is_waited_for(bench, cluster, new_follower):
    bench.lead(0.6)
    cluster.plays["1"] = "rolling"
    follower = new_follower()
    follower.step()
    assert isinstance(follower.step(), Wait)
    cluster.plays["1"] = "unseen"  # the Deployment controller has not seen the change
    assert isinstance(follower.step(), Wait)
    assert "espalier.dev/last-good" not in cluster.annotations


def test_the_deployment_follows_the_alias_back(bench, cluster, new_follower, serve_forced):
    serve_forced("1", "2")
    rollback(bench.model)
    settle(new_follower)
    assert (cluster.serving, cluster.rolls) == ("1", 3)
    assert cluster.annotations["espalier.dev/last-good"] == "1"


def test_a_good_version_without_a_pass_is_not_rolled_to(bench, cluster, new_follower, serve_forced):
    serve_forced("1", "2")
    cluster.plays["3"] = "stuck"
    bench.model.tag(bench.model.version("2"), {"espalier.gate": "refused"})
    bench.register(0.6)
    force(bench, "3")
    follower = new_follower()
    for _ in range(6):
        follower.step()
    assert cluster.serving == "3"


def test_an_environment_changed_by_hand_is_put_right(bench, cluster, new_follower):
    bench.lead(0.6)
    settle(new_follower)
    (container, _) = cluster.deployment["spec"]["template"]["spec"]["containers"]
    next(e for e in container["env"] if e["name"] == "ESPALIER_MODEL")["value"] = "models:/other/1"
    settle(new_follower)
    assert cluster.environment["ESPALIER_MODEL"] == f"models:/{bench.name}/1"


@pytest.mark.parametrize("status", [401, 404, 409, 503])
def test_a_refusal_of_the_api_server_names_the_purpose(bench, cluster, new_follower, status):
    cluster.faults = [status]
    with pytest.raises(ServingError, match=f"read the Deployment .*: HTTP {status}"):
        new_follower().step()


def test_an_absent_server_is_an_error_that_changes_nothing(cluster, new_follower):
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(ServingError, match="does not answer") as away:
        new_follower(api=nowhere).step()
    assert "the-controller" not in str(away.value), "its token"
    with pytest.raises(RegistryError):
        new_follower(registry=nowhere).step()
    assert {verb for verb, _ in cluster.requests} == {"get"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_flaky_api_server_only_delays_the_outcome(bench, cluster, new_follower, seed):
    dice = random.Random(seed)
    for number in ("1", "2"):
        bench.register(0.6)
        force(bench, number)
    cluster.plays["2"] = "stuck"
    cluster.annotations["espalier.dev/last-good"] = "1"
    stop = threading.Event()

    class Unlucky:
        """Faults before each step; stops when the outcome has been there for a while."""

        steps = 0

        def step(self):
            self.steps += 1
            if self.steps > 40:
                stop.set()
                cluster.faults = []
            elif dice.random() < 0.6:
                cluster.faults = dice.choices([500, 503, 409, 429], k=1) if self.steps < 35 else []
            return new_follower().step()

    config = ControllerConfig(poll_s=1e-4, max_backoff_s=1e-3)
    follow(Unlucky(), config, Heartbeat(config, lambda: 0.0), stop)
    assert cluster.serving == "1"
    assert cluster.annotations["espalier.dev/failed"].startswith("2@")
    assert reasons(cluster).count("Served") == 0
