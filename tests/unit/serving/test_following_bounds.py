"""Bounds of the controller and its probes: pauses, deadlines, lengths, and what counts as ready."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import asynccontextmanager

import pytest

from espalier.config import ControllerConfig, ServingConfig
from espalier.records import RegistryError, ServingError
from espalier.rollout.engines.engine import Completion, EngineCounters, Sampling
from espalier.serving.app import Endpoint
from espalier.serving.choice import SamplingOrder
from espalier.serving.controller import Heartbeat, follow, pause_s
from espalier.serving.decision import RolloutProgress, RolloutState
from espalier.serving.engine_thread import EngineThread
from espalier.serving.following import HealthProbe
from espalier.serving.metrics import Gauges, Metrics
from espalier.serving.server import Door, DrainingServer
from espalier.serving.source import Source, directory_source, is_reference
from espalier.serving.workload import Address, pod_faults
from tests.fakes.loopback import Handler, Server
from tests.fakes.loopback import serving as listening_on_loopback

CONFIG = ControllerConfig(poll_s=5, max_backoff_s=60)
MODEL = "espalier-search-agent"
VERSION = f"models:/{MODEL}/3"


@pytest.mark.parametrize(
    ("faults", "jitter", "seconds"),
    [(0, 0.0, 5), (0, 1.0, 5), (1, 0.0, 5), (1, 1.0, 10), (2, 1.0, 20), (2, 0.0, 10), (5, 1.0, 60)],
)
def test_a_pause_doubles_with_each_fault_up_to_the_longest(faults, jitter, seconds):
    assert pause_s(CONFIG, faults, jitter) == seconds
    assert pause_s(CONFIG, 10_000, 1.0) == 60


class Steps:
    """A follower whose steps meet these errors, and a stop after the last."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self.stop = threading.Event()
        self.waited = []

    def step(self):
        if error := self._errors.pop(0):
            raise error

    def is_set(self):
        return not self._errors

    def wait(self, seconds):
        self.waited.append(seconds)


def test_faults_in_a_row_are_counted_anew_after_a_success():
    away = [ServingError("away"), RegistryError("away too")]
    steps = Steps(*away, None, *away)
    heartbeat = Heartbeat(CONFIG, lambda: 0.0)
    follow(steps, CONFIG, heartbeat, steps, jitter=lambda: 1.0)
    assert steps.waited == [10, 20, 5, 10, 20]
    assert heartbeat.fault("/readyz") == "away too"


def test_a_heartbeat_may_be_silent_for_three_longest_pauses():
    now = [0.0]
    heartbeat = Heartbeat(CONFIG, lambda: now[0])
    now[0] = 195.0
    assert heartbeat.fault("/healthz") is None
    now[0] = 195.5
    assert heartbeat.fault("/healthz") == "no step for 196 s"


def deployment(version="3", value=None, container="serving", **status):
    env = [{"name": "ESPALIER_MODEL", "value": value or f"models:/{MODEL}/{version}"}]
    return {
        "metadata": {"uid": "u", "resourceVersion": "9", "generation": 2},
        "spec": {
            "replicas": 2,
            "template": {
                "metadata": {"annotations": {"espalier.dev/model-version": version}},
                "spec": {"containers": [{"name": "other"}, {"name": container, "env": env}]},
            },
        },
        "status": {
            "observedGeneration": 2,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
            **status,
        },
    }


@pytest.mark.parametrize(
    ("status", "progress"),
    [
        ({}, RolloutProgress.READY),
        ({"observedGeneration": 3}, RolloutProgress.READY),
        ({"observedGeneration": 1}, RolloutProgress.ROLLING),
        ({"replicas": 3}, RolloutProgress.ROLLING),
        ({"updatedReplicas": 1}, RolloutProgress.ROLLING),
        ({"availableReplicas": 1}, RolloutProgress.ROLLING),
        ({"conditions": [{"reason": "NewReplicaSetAvailable"}]}, RolloutProgress.READY),
        ({"conditions": [{"reason": "ProgressDeadlineExceeded"}]}, RolloutProgress.STUCK),
    ],
)
def test_a_rollout_is_ready_when_its_pods_are(status, progress):
    assert RolloutState.read(deployment(**status), MODEL).progress is progress


def test_a_deployment_without_replicas_is_never_ready():
    none = deployment(replicas=0, updatedReplicas=0, availableReplicas=0)
    none["spec"]["replicas"] = 0
    assert RolloutState.read(none, MODEL).progress is RolloutProgress.ROLLING


@pytest.mark.parametrize(
    ("changes", "asked"),
    [({}, "3"), ({"value": "models:/other/3"}, None), ({"container": "sidecar"}, None)],
)
def test_a_version_is_asked_for_where_all_places_agree(changes, asked):
    assert RolloutState.read(deployment(**changes), MODEL).asked == asked


@pytest.mark.parametrize("seconds", [0.005, 0.0051, 60.0, 61.0])
def test_a_duration_is_in_every_bucket_that_holds_it(seconds):
    metrics = Metrics()
    metrics.observe_request(seconds)
    told = metrics.text(Gauges(1, 0, 0, 0))
    for bound in (0.005, 0.02, 60.0):
        line = f'espalier_serving_request_seconds_bucket{{le="{bound}"}} {int(seconds <= bound)}'
        assert line in told
    assert 'espalier_serving_request_seconds_bucket{le="+Inf"} 1' in told


def test_a_pod_tells_only_the_end_of_its_words():
    ended = {"terminated": {"exitCode": 2, "message": "y" + "x" * 300}}
    status = {"containerStatuses": [{"name": "serving", "state": ended}]}
    pod = {"metadata": {"annotations": {"espalier.dev/model-version": "3"}}, "status": status}
    assert pod_faults([pod], "3") == "serving: exit 2 " + "x" * 300


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "message": "not yet"},
    ],
)
def test_a_condition_of_a_pod_that_starts_is_no_fault(condition):
    starting = {"name": "serving", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {"conditions": [condition], "containerStatuses": [starting]}
    pod = {"metadata": {"annotations": {"espalier.dev/model-version": "3"}}, "status": status}
    assert pod_faults([pod], "3") == ""


class Completions(Handler):
    answer = (200, b'{"usage": {"completion_tokens": 1}}')

    def do_POST(self):
        self.read_body()
        status, body = self.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ((200, b'{"usage": {"completion_tokens": 1}}'), None),
        ((200, b'{"usage": {"completion_tokens": 2}}'), "without a token"),
        ((200, b'{"usage": {}}'), "without a token"),
        ((200, b"<html>"), "without a token"),
        ((503, b"z" * 300), "HTTP 503: " + "z" * 200),
    ],
)
def test_a_service_is_healthy_where_it_writes_one_token(monkeypatch, answer, fault):
    monkeypatch.setattr(Completions, "answer", answer)
    server = Server(Completions)
    with listening_on_loopback(server):
        found = HealthProbe().fault(Address(server.address + "/", VERSION))
    assert found is None if fault is None else found.endswith(fault)


def test_a_service_is_asked_with_the_controllers_key(monkeypatch):
    seen = []

    class Noting(Completions):
        answer = (200, b'{"usage": {"completion_tokens": 1}}')

        def do_POST(self):
            seen.append(self.headers["Authorization"])
            super().do_POST()

    server = Server(Noting)
    with listening_on_loopback(server):
        assert HealthProbe("esp-x").fault(Address(server.address, VERSION)) is None
        assert HealthProbe().fault(Address(server.address, VERSION)) is None
    assert seen == ["Bearer esp-x", None]


def test_a_service_that_is_away_is_a_fault():
    nobody = Address("http://127.0.0.1:9", VERSION)
    assert "does not answer (ConnectError)" in HealthProbe().fault(nobody)


def left_after(*signals, linger_s=0.02):
    """Whether a server is leaving, and when it ends, after these signals."""
    told = []

    async def signalled():
        config = ServingConfig(linger_s=linger_s, drain_s=1)
        endpoint = Endpoint(config, lambda: 0)
        endpoint.leave = lambda: told.append("leaving")
        server = DrainingServer(endpoint, config, Door())
        ends = []
        for signum in signals:
            server.handle_exit(signum, None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ends.append(server.should_exit)
        return server, ends

    async def waited():
        server, ends = await signalled()
        for _ in range(100):
            if server.should_exit:
                break
            await asyncio.sleep(0.01)
        return [*ends, server.should_exit]

    return told, asyncio.run(waited())


def test_a_server_lingers_after_the_first_signal_alone():
    assert left_after(signal.SIGTERM) == (["leaving"], [False, True])
    assert left_after(signal.SIGTERM, signal.SIGTERM) == (["leaving"], [False, True, True])
    assert left_after(signal.SIGINT) == ([], [True, True])


class Paced:
    """An engine that writes as many tokens as it is asked for, at once."""

    policy_version = 0
    counters = EngineCounters()

    def __init__(self, clock, token_s):
        self.asked, self._clock, self._token_s = [], clock, token_s

    @asynccontextmanager
    async def serving(self):
        yield

    async def open(self, prompt_ids, sampling):
        return self

    async def sample(self, *, max_tokens):
        self.asked.append(max_tokens)
        self._clock[0] += self._token_s * max_tokens
        return Completion((1,) * max_tokens, (-1.0,) * max_tokens, stopped=False)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("order", "token_s", "asked"),
    [
        ({}, 1 / 128, [20]),
        ({"in_pieces": True}, 1 / 128, [1, 3, 3, 3, 3, 3, 3, 1]),
        ({"stops": ("never",)}, 1 / 128, [1, 3, 3, 3, 3, 3, 3, 1]),
        ({"in_pieces": True}, 1 / 1024, [1, 16, 3]),
        ({"in_pieces": True}, 1.0, [1] * 20),
    ],
)
def test_pieces_take_thirty_milliseconds_and_sixteen_tokens_at_most(
    monkeypatch, order, token_s, asked
):
    clock = [0.0]
    monkeypatch.setattr("espalier.serving.engine_thread.time.perf_counter", lambda: clock[0])
    engine = Paced(clock, token_s)
    writer = EngineThread(engine)
    writer.start()

    async def written():
        sampling = Sampling(temperature=1.0, seed=0)
        wanted = SamplingOrder(prompt_ids=(1,), sampling=sampling, max_tokens=20, **order)
        return [len(piece.token_ids) async for piece in writer.write(wanted)]

    sizes = asyncio.run(written())
    writer.stop()
    assert sizes == engine.asked == asked


def test_a_fingerprint_is_that_of_the_weights():
    served = Source(names=("m",), created=0, described={"policy_digest": "ab" * 32})
    assert served.fingerprint == "sha256:" + "ab" * 8


def test_a_directory_is_served_under_the_name_of_its_artifact(tmp_path):
    (tmp_path / "trained" / "policy").mkdir(parents=True)
    assert directory_source(tmp_path / "trained" / "policy").names == ("trained",)
    assert directory_source(tmp_path / "trained").names == ("trained",)
    with pytest.raises(ServingError, match="no such directory"):
        directory_source(tmp_path / "none")


def test_a_folder_whose_name_has_an_at_is_no_reference(tmp_path):
    (tmp_path / "me@home").mkdir()
    assert not is_reference(str(tmp_path / "me@home"))
    assert is_reference(str(tmp_path / "me@work"))
    assert is_reference("models:/m/3")
    assert not is_reference(str(tmp_path / "none"))
