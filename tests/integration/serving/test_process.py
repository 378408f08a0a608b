"""The endpoint as a process of its own: from the registry to SIGTERM."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx2
import pytest

from espalier.policy.loading import save_policy
from espalier.records import publishing
from espalier.registry.promotion import promote
from tests.factories.tiny import tiny_policy
from tests.integration.commands import espalier_here
from tests.integration.serving.live import events
from tests.integration.waiting import wait_until
from tests.unit.registry import conftest as registry


@contextmanager
def endpoint(log, **variables):
    """`python -m espalier.serving.endpoint` on a free port; yields the process and a client."""
    environment = {key: v for key, v in os.environ.items() if not key.startswith("MLFLOW_")}
    command = [sys.executable, "-m", "espalier.serving.endpoint", "--port", "0"]
    command += ["--set", "serving.linger_s=1"]
    with log.open("w") as said:
        process = subprocess.Popen(command, env={**environment, **variables}, stderr=said)
    try:
        wait_until(lambda: "listening" in log.read_text() or process.poll(), within_s=120)
        (address,) = re.findall(r"http://\S+", log.read_text())
        with httpx2.Client(base_url=address, timeout=60) as client:
            yield process, client
    finally:
        process.terminate()
        process.wait(timeout=60)
        print(log.read_text())  # shown where the test fails


def write_tiny_policy(path, weights):
    with publishing(path, registry.provenance("train")) as draft:
        save_policy(tiny_policy(), draft.path / "policy")


def test_the_champion_is_served_from_the_registry_and_drains(bench, tmp_path):
    bench.write_policy = write_tiny_policy
    bench.register(0.6)
    promote(bench.model, bench.gate())
    variables = {
        "ESPALIER_MODEL": f"models:/{bench.name}/1",
        "ESPALIER_POLICY_DIGEST": bench.model.version("1").policy_digest,
        "MLFLOW_TRACKING_URI": bench.target.uri,
    }
    with endpoint(tmp_path / "log", **variables) as (process, client):
        wait_until(lambda: client.get("/readyz").status_code == 200, within_s=120)
        assert client.get("/v1/models").json()["data"][0]["gate"] == "passed"
        asked = {"model": bench.name, "prompt": [20], "max_tokens": 200, "ignore_eos": True}
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(
                client.post("/v1/completions", json={**asked, "stream": True})
            )
        )
        asking.start()
        wait_until(lambda: "taken 0" not in client.get("/metrics").text or answers)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert client.get("/health").json()["status"] == "draining"
        assert client.post("/v1/completions", json={**asked, "max_tokens": 1}).status_code == 200
        asking.join()
        assert events(answers[0])[-1]["choices"][0]["finish_reason"] == "length"
        assert process.wait(timeout=30) == 0


def test_a_version_without_a_pass_ends_the_process(bench, tmp_path):
    bench.register(0.6)
    variables = {
        "ESPALIER_MODEL": f"models:/{bench.name}/1",
        "MLFLOW_TRACKING_URI": bench.target.uri,
    }
    log = tmp_path / "log"
    command = [sys.executable, "-m", "espalier.serving.endpoint", "--port", "0"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, stderr=log.open("w"), timeout=120, check=False
    )
    said = log.read_text()
    assert done.returncode == 1
    assert "gate" in said
    assert "listening" not in said
    assert "Traceback" not in said


def test_without_a_version_the_process_lives_and_is_unready(tmp_path):
    with endpoint(tmp_path / "log", ESPALIER_MODEL="") as (process, client):
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        refused = client.post("/v1/completions", json={"model": "m", "prompt": "x"})
        assert refused.status_code == 503
        assert process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/policy"], "no such directory"),
        (["models:/m/1"], "no such registry"),
        (["m@champion", "--host", "203.0.113.1"], "cannot be served on"),
        (["."], "not a policy directory"),
    ],
)
def test_a_policy_that_cannot_be_served_is_one_message(tmp_path, arguments, message):
    done = espalier_here("serve", *arguments, "--port", "0", cwd=tmp_path)
    assert done.exit_code == 1
    assert message in done.stderr
    assert "listening" not in done.stderr


def test_a_port_in_use_is_one_message(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = espalier_here("serve", "no/such/policy", "--port", port, cwd=tmp_path)
    assert done.exit_code == 1
    assert f"127.0.0.1:{port}" in done.stderr
