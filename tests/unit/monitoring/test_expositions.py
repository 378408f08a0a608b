import shutil
import socket
import subprocess

import pytest

from espalier.monitoring import PORT_VARIABLE, exported_tracker
from espalier.records import EspalierError, NullTracker
from tests.benchmarks.minio_server import free_port
from tests.factories import smuggled
from tests.unit.monitoring.scrapes import get


def value(text, series):
    (found,) = [line for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(found.rpartition(" ")[2])


def test_a_stage_tells_of_its_steps(expositions):
    told = expositions["training"]
    assert value(told, 'espalier_training_step{stage="train"}') == 5
    assert value(told, 'espalier_training_planned_steps{stage="train"}') == 5
    assert value(told, 'espalier_training_reward_mean{stage="train"}') == 0.5
    assert value(told, 'espalier_training_dev_exact_match_ratio{stage="train"}') == 0.4
    assert value(told, 'espalier_training_lost_episodes_total{stage="train"}') == 5
    assert value(told, 'espalier_training_step_seconds_count{stage="train"}') == 5
    for name in ("loss", "mismatch_kl_nats", "tokens_per_second", "checkpoint_timestamp_seconds"):
        assert f"espalier_training_{name}{{" in told
    assert "espalier_training_reference_kl_nats{" not in told, "a figure that is not reported"
    assert value(told, "process_resident_memory_bytes") > 0


def test_a_stage_tells_of_its_sandboxes(expositions):
    told = expositions["training"]
    assert value(told, 'espalier_sandbox_pool_sandboxes{state="lent"}') == 1
    assert value(told, "espalier_sandbox_pool_size") == 4
    assert value(told, "espalier_sandbox_pool_claim_seconds_count") >= 1
    assert value(told, "espalier_sandbox_pool_waiting_claims") == 0
    assert value(told, 'espalier_sandbox_pool_failures_total{cause="lost"}') >= 1
    assert value(told, "espalier_sandbox_pool_created_total") >= 1


def test_the_controller_tells_versions_and_counts(expositions):
    told = expositions["controller"]
    assert value(told, 'espalier_controller_version{role="champion"}') == 3
    assert value(told, 'espalier_controller_version{role="last_good"}') == 2
    assert value(told, 'espalier_controller_steps_total{outcome="fault"}') == 1
    assert value(told, 'espalier_controller_rollouts_total{outcome="rolled_back"}') == 0
    assert value(told, "espalier_controller_last_step_timestamp_seconds") == 17
    assert value(told, 'espalier_controller_version{role="deployed"}') == 2


def test_names_and_help_are_as_prometheus_asks(expositions):
    """Promtool's linter: units in names, counters that end in _total, help for each."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    for program, text in expositions.items():
        # names of the process are those of Prometheus' client
        own = "".join(f"{line}\n" for line in text.splitlines() if "espalier_" in line)
        command = ["promtool", "check", "metrics"]
        done = subprocess.run(command, input=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (program, done.stdout + done.stderr)


def test_without_a_port_nothing_listens():
    with exported_tracker("train", {}, print) as tracker:
        assert type(tracker) is NullTracker


def test_the_port_is_free_when_the_stage_has_ended():
    port = free_port()
    for _ in range(2):
        with exported_tracker("train", {PORT_VARIABLE: str(port)}, print):
            assert "espalier_training_start_timestamp_seconds" in get(port)


@pytest.mark.parametrize("kind", smuggled.KINDS)
def test_a_connection_has_one_answer_whatever_follows(kind):
    port = free_port()
    with exported_tracker("train", {PORT_VARIABLE: str(port)}, print):
        sent = smuggled.smuggled(kind, "/metrics", "GET")
        assert smuggled.statuses_at(f"http://127.0.0.1:{port}", sent) == [200]


def test_a_taken_port_is_a_line_and_no_end():
    said = []
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        with exported_tracker("train", {PORT_VARIABLE: port}, said.append) as tracker:
            tracker.metrics({"loss": 1.0}, step=1)
    assert len(said) == 1
    assert port in said[0]


@pytest.mark.parametrize("named", ["0", "65536", "http", "²"])
def test_what_is_no_port_is_refused(named):
    with (
        pytest.raises(EspalierError, match="give a port"),
        exported_tracker("train", {PORT_VARIABLE: named}, print),
    ):
        pass
