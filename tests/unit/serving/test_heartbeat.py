import socket
import urllib.error
import urllib.request

import pytest

from espalier.config import ControllerConfig
from espalier.records import ServingError
from espalier.serving.controller import Heartbeat
from espalier.serving.controller_metrics import ControllerMetrics
from tests.benchmarks.minio_server import free_port
from tests.factories import smuggled

CONFIG = ControllerConfig(poll_s=5, max_backoff_s=60)


def test_faults_make_it_not_ready_and_silence_makes_it_dead():
    now = [100.0]
    heartbeat = Heartbeat(CONFIG, lambda: now[0])
    assert heartbeat.fault("/readyz") == "no step was made yet"
    heartbeat.beat(fault="the API server is away")
    assert heartbeat.fault("/readyz") == "the API server is away"
    assert heartbeat.fault("/healthz") is None
    heartbeat.beat(fault=None)
    assert heartbeat.fault("/readyz") is None
    now[0] += 195.0  # three of the longest pauses, and three of the shortest
    assert heartbeat.fault("/healthz") is None
    now[0] += 0.5
    assert heartbeat.fault("/healthz") == "no step for 196 s"


def test_probes_and_metrics_are_answered_over_http():
    port, metrics = free_port(), ControllerMetrics()
    metrics.count_step("fault", 17.0)

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.read().decode()

    with Heartbeat.serving(port, CONFIG, lambda: 100.0, metrics) as heartbeat:
        heartbeat.beat(fault=None)
        assert get("/readyz") == "ok\n"
        heartbeat.beat(fault="away")
        for path, status in (("/readyz", 503), ("/elsewhere", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path)
            assert refused.value.code == status
        lines = get("/metrics").splitlines()
    assert 'espalier_controller_steps_total{outcome="fault"} 1.0' in lines
    assert "espalier_controller_last_step_timestamp_seconds 17.0" in lines


@pytest.mark.parametrize("kind", smuggled.KINDS)
def test_a_connection_has_one_answer_whatever_follows(kind):
    port = free_port()
    with Heartbeat.serving(port, CONFIG, lambda: 100.0):
        sent = smuggled.smuggled(kind, "/metrics", "GET")
        assert smuggled.statuses_at(f"http://127.0.0.1:{port}", sent) == [200]


def test_a_port_that_is_taken_is_one_message():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        serving = Heartbeat.serving(port, CONFIG, lambda: 0.0)
        with pytest.raises(ServingError, match=f"port {port}"), serving:
            pass
