"""Bounds of the controller and its probes: pauses, deadlines, lengths, and what counts as ready."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from espalier.config import ControllerConfig, ServingConfig
from espalier.records import RegistryError, ServingError
from espalier.rollout.engines.engine import Sampling
from espalier.serving.app import Endpoint
from espalier.serving.choice import SamplingOrder
from espalier.serving.controller import Heartbeat, follow, pause_s
from espalier.serving.decision import RolloutProgress, RolloutState
from espalier.serving.engine_thread import EngineThread
from espalier.serving.following import HealthProbe
from espalier.serving.server import Door, DrainingServer
from espalier.serving.workload import Address
from tests.fakes.loopback import Handler, Server
from tests.fakes.loopback import serving as listening_on_loopback
from tests.unit.serving.test_answering import OneToken

CONFIG = ControllerConfig(poll_s=5, max_backoff_s=60)
MODEL = "espalier-search-agent"
VERSION = f"models:/{MODEL}/3"


def test_a_pause_doubles_with_each_fault_up_to_the_longest():
    assert [pause_s(CONFIG, 0, jitter) for jitter in (0.0, 1.0)] == [5, 5]
    assert [pause_s(CONFIG, faults, 0.0) for faults in (1, 2, 3)] == [5, 10, 20]
    assert [pause_s(CONFIG, faults, 1.0) for faults in (1, 2, 3, 5, 10_000)] == [10, 20, 40, 60, 60]


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


def deployment(version="3", value=None, container="serving", wanted=2, **status):
    env = [{"name": "ESPALIER_MODEL", "value": value or f"models:/{MODEL}/{version}"}]
    annotations = {"annotations": {"espalier.dev/model-version": version}}
    containers = [{"name": "other"}, {"name": container, "env": env}]
    counted = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), wanted)
    return {
        "metadata": {"uid": "u", "resourceVersion": "9", "generation": 2},
        "spec": {
            "replicas": wanted,
            "template": {"metadata": annotations, "spec": {"containers": containers}},
        },
        "status": {"observedGeneration": 2, **counted, **status},
    }


@pytest.mark.parametrize(
    ("changes", "progress"),
    [
        ({}, RolloutProgress.READY),
        ({"wanted": 0}, RolloutProgress.ROLLING),
        ({"observedGeneration": 3}, RolloutProgress.READY),
        ({"observedGeneration": 1}, RolloutProgress.ROLLING),
        ({"replicas": 3}, RolloutProgress.ROLLING),
        ({"updatedReplicas": 1}, RolloutProgress.ROLLING),
        ({"availableReplicas": 1}, RolloutProgress.ROLLING),
        ({"conditions": [{"reason": "NewReplicaSetAvailable"}]}, RolloutProgress.READY),
        ({"conditions": [{"reason": "ProgressDeadlineExceeded"}]}, RolloutProgress.STUCK),
    ],
)
def test_a_rollout_is_ready_when_its_pods_are(changes, progress):
    assert RolloutState.read(deployment(**changes), MODEL).progress is progress


@pytest.mark.parametrize(
    ("changes", "asked"),
    [({}, "3"), ({"value": "models:/other/3"}, None), ({"container": "sidecar"}, None)],
)
def test_a_version_is_asked_for_where_all_places_agree(changes, asked):
    assert RolloutState.read(deployment(**changes), MODEL).asked == asked


@pytest.fixture
def completions():
    """A service that answers as `answer` says, and notes the keys it is asked with."""

    class Completions(Handler):
        answer, keys = (200, b'{"usage": {"completion_tokens": 1}}'), []

        def do_POST(self):
            self.read_body()
            self.keys.append(self.headers["Authorization"])
            self.say(*self.answer)

    with listening_on_loopback(Server(Completions)) as server:
        server.kind = Completions
        yield server


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ((200, b'{"usage": {"completion_tokens": 2}}'), "without a token"),
        ((200, b'{"usage": {}}'), "without a token"),
        ((200, b"<html>"), "without a token"),
        ((503, b"z" * 300), "HTTP 503: " + "z" * 200),
    ],
)
def test_a_service_that_writes_no_token_is_not_healthy(completions, answer, fault):
    completions.kind.answer = answer
    found = HealthProbe().fault(Address(completions.address + "/", VERSION))
    assert found.endswith(fault)


def test_a_service_is_asked_with_the_controllers_key(completions):
    for probe in (HealthProbe("esp-x"), HealthProbe()):
        assert probe.fault(Address(completions.address, VERSION)) is None
    assert completions.kind.keys == ["Bearer esp-x", None]
    nobody = Address("http://127.0.0.1:9", VERSION)
    assert "does not answer" in HealthProbe().fault(nobody)


def left_after(*signals):
    """Whether a server is leaving, and when it ends, after these signals."""
    told = []

    async def signalled():
        config = ServingConfig(linger_s=0.02, drain_s=1)
        endpoint = Endpoint(config, lambda: 0)
        endpoint.leave = lambda: told.append("leaving")
        server, ends = DrainingServer(endpoint, config, Door()), []
        for signum in signals:
            server.handle_exit(signum, None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ends.append(server.should_exit)
        for _ in range(100):
            if server.should_exit:
                break
            await asyncio.sleep(0.01)
        return [*ends, server.should_exit]

    return told, asyncio.run(signalled())


def test_a_server_lingers_after_the_first_signal_alone():
    assert left_after(signal.SIGTERM) == (["leaving"], [False, True])
    assert left_after(signal.SIGTERM, signal.SIGTERM) == (["leaving"], [False, True, True])
    assert left_after(signal.SIGINT) == ([], [True, True])


class Paced(OneToken):
    """Notes how many tokens it is asked for, each of which takes so long."""

    def __init__(self, clock, token_s):
        self.asked, self._clock, self._token_s = [], clock, token_s

    async def sample(self, *, max_tokens):
        self.asked.append(max_tokens)
        self._clock[0] += self._token_s * max_tokens
        return await super().sample(max_tokens=max_tokens)


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
