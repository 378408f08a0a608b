import socket
import urllib.error
import urllib.request

import pytest

from espalier.config import ControllerConfig
from espalier.records import ServingError
from espalier.serving.controller import Heartbeat
from espalier.serving.controller_metrics import ControllerMetrics

CONFIG = ControllerConfig(poll_s=5, max_backoff_s=60)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_faults_make_it_not_ready_and_silence_makes_it_dead():
    clock = Clock()
    heartbeat = Heartbeat(CONFIG, clock)
    assert heartbeat.fault("/readyz") == "no step was made yet"
    heartbeat.beat(fault="the API server is away")
    assert heartbeat.fault("/readyz") == "the API server is away"
    assert heartbeat.fault("/healthz") is None
    heartbeat.beat(fault=None)
    assert heartbeat.fault("/readyz") is None
    clock.now += 200
    assert heartbeat.fault("/healthz") == "no step for 200 s"


def test_probes_are_answered_over_http():
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    with Heartbeat.serving(port, CONFIG, Clock()) as heartbeat:
        heartbeat.beat(fault=None)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.read() == b"ok\n"
        heartbeat.beat(fault="away")
        for path, status in (("/readyz", 503), ("/elsewhere", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}")
            assert refused.value.code == status


def test_metrics_are_beside_the_probes():
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    metrics = ControllerMetrics()
    metrics.count_step("fault", 17.0)
    with (
        Heartbeat.serving(port, CONFIG, Clock(), metrics),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        lines = answer.read().decode().splitlines()
    assert 'espalier_controller_steps_total{outcome="fault"} 1.0' in lines
    assert "espalier_controller_last_step_timestamp_seconds 17.0" in lines
    assert "# TYPE espalier_controller_steps_total counter" in lines


def test_a_port_that_is_taken_is_one_message():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServingError, match=f"port {port}"),
            Heartbeat.serving(port, CONFIG, Clock()),
        ):
            pass
