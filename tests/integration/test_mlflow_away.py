"""MLflow's server fails and hangs while a policy trains, seen by MLflow's own client."""

import json
import threading
import time

import pytest

from espalier.records import RegistryAwayError
from espalier.registry import MlflowTracker
from espalier.registry.connection import connect
from espalier.registry.tracker import RunHandle, send_unsent
from tests.factories.rl_loops import run_loop
from tests.fakes.loopback import Handler, Server, serving

AWAY_FROM = {1: "answers", 2: "answers", 3: "fails", 4: "fails", 5: "hangs", 6: "hangs"}
"""Step -> what the server does from then on."""


class Tracking(Server):
    """Answers as MLflow does, with errors, or never."""

    def __init__(self):
        super().__init__(_Handler)
        self.does = "answers"
        self.figures, self.statuses = [], []
        self.released = threading.Event()


class _Handler(Handler):
    def do_GET(self):
        self._respond()

    def do_POST(self):
        self._respond()

    def _respond(self):
        server, body = self.server, json.loads(self.read_body() or "{}")
        if server.does == "hangs":
            server.released.wait(60)
            self.close_connection = True
            return
        if server.does == "fails":
            return self.say(500, {"error_code": "INTERNAL_ERROR", "message": "QueuePool limit"})
        if self.path.endswith("/log-batch"):
            server.figures += [(one["key"], one["step"]) for one in body.get("metrics", ())]
        if self.path.endswith("/runs/update"):
            server.statuses.append(body["status"])
        self.say(200, {})


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    tracking = Tracking()
    with serving(tracking):
        yield tracking
        tracking.released.set()


class FollowsTheSteps(MlflowTracker):
    """Tries to send at every step; its server changes with the steps."""

    def __init__(self, run, server):
        super().__init__(run, clock=iter(range(0, 10**9, 10**6)).__next__)
        self.server = server

    def metrics(self, values, *, step=None):
        self.server.does = AWAY_FROM[step]
        super().metrics(values, step=step)


@pytest.mark.slow
def test_training_goes_on_and_its_figures_arrive_later(server, tmp_path):
    """One failed request ended a healthy run of fifteen hours (miles#2571)."""
    from mlflow import MlflowClient

    run = RunHandle(
        client=MlflowClient(server.address), uri=server.address, run_id="a1", experiment_id="0",
        unsent=tmp_path / "unsent",
    )  # fmt: skip
    untracked, _ = run_loop(tmp_path / "warm", tmp_path / "untracked")
    tracker = FollowsTheSteps(run, server)
    tracked, _ = run_loop(tmp_path / "warm", tmp_path / "tracked", tracker)
    tracker.finish()
    assert tracked.progress.history == untracked.progress.history
    assert {step for key, step in server.figures if key == "reward"} == {1, 2}
    del tracker  # the process ends, or is killed: the run's folder is left
    with pytest.raises(RegistryAwayError):
        send_unsent(run)
    server.does = "answers"
    send_unsent(run)
    send_unsent(run)
    steps = [step for key, step in server.figures if key == "reward"]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert server.statuses == ["FINISHED"]
    assert list((tmp_path / "unsent").iterdir()) == []


@pytest.mark.parametrize("does", ["fails", "hangs"])
def test_a_server_away_at_the_start_is_named_in_time(server, does):
    server.does = does
    began_s = time.monotonic()
    with pytest.raises(RegistryAwayError, match=server.address):
        connect(server.address)
    assert time.monotonic() - began_s < 20
