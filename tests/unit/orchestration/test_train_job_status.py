"""Progress in a TrainJob's status: what is posted, where to, and what a fault costs."""

import json
import math
import ssl
import threading
from datetime import datetime

import jsonschema
import pytest

from espalier.steps.train_job_status import (
    CERTIFICATE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    TrainJobTracker,
    reporting_to_train_job,
)
from tests.factories.certificates import certificate
from tests.fakes.loopback import Handler, Server, serving
from tests.unit.k8s.custom_resources import TRAINER_STATUS, record

# of a TrainJob; pkg/statusserver/server.go and utils.go of Kubeflow Trainer 2.3.0
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/espalier-pipeline/trainjobs/tj-r1/status"
REQUEST = record({}, trainerStatus=TRAINER_STATUS)
TOKEN = "a-token-for-this-train-job"


class StatusStandIn:
    """Answers as Trainer's status server does; `refusal` is the status of every answer."""

    def __init__(self, folder):
        self.posted, self.refusal, self.arrived = [], None, threading.Event()
        files = certificate(folder / "server")
        (folder / "token").write_text(f"{TOKEN}\n")
        self.server = Server(_Handler)
        self.server.stand_in = self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.environment = {
            URL_VARIABLE: f"https://127.0.0.1:{self.server.server_port}{PATH}",
            CERTIFICATE_VARIABLE: str(files.certificate),
            TOKEN_VARIABLE: str(folder / "token"),
        }

    def answer(self, path, authorization, body):
        if path != PATH:
            return 404, "Not found"
        if authorization != f"Bearer {TOKEN}":
            return 403, "Forbidden"
        if len(body) > 1 << 16:
            return 413, "Payload too large"
        formats = jsonschema.Draft7Validator.FORMAT_CHECKER
        try:
            jsonschema.validate(json.loads(body), REQUEST, format_checker=formats)
        except (ValueError, jsonschema.ValidationError) as error:
            return 422, str(error)
        return 200, json.loads(body)


class _Handler(Handler):
    def do_POST(self):
        stand_in = self.server.stand_in
        body = self.read_body()
        status, content = stand_in.answer(self.path, self.headers.get("Authorization"), body)
        if stand_in.refusal:
            status, content = stand_in.refusal, "Internal error"
        if status == 200:
            stand_in.posted.append(content["trainerStatus"])
        self.say(status, content if status == 200 else {"message": content, "code": status})
        stand_in.arrived.set()


@pytest.fixture
def trainer(tmp_path):
    stand_in = StatusStandIn(tmp_path)
    with serving(stand_in.server):
        yield stand_in


def reported(trainer, said, steps=4, **figures):
    with reporting_to_train_job(trainer.environment, said.append, every_s=0.01) as trackers:
        (tracker,) = trackers
        with tracker.progress("train", 8) as progress:
            for step in range(1, steps + 1):
                tracker.metrics({"loss": 0.5 / step, "elsewhere": 1.0, **figures}, step=step)
                progress.advance()


def test_progress_and_figures_reach_the_status_server(trainer):
    said = []
    reported(trainer, said, reward=0.4313)
    last = trainer.posted[-1]
    assert said == []
    assert last["progressPercentage"] == 50
    assert last["estimatedRemainingSeconds"] >= 0
    named = {metric["name"]: metric["value"] for metric in last["metrics"]}
    assert named == {"step": "4", "loss": "0.125", "reward": "0.4313"}
    assert datetime.fromisoformat(last["lastUpdatedTime"]).tzinfo is not None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-300, 1e300])
def test_every_figure_fits_the_servers_types(trainer, value):
    said = []
    reported(trainer, said, steps=8, loss=value)
    assert said == []
    assert trainer.posted[-1]["progressPercentage"] == 100
    assert trainer.posted[-1]["estimatedRemainingSeconds"] == 0


def test_a_stage_that_failed_reports_how_far_it_came(trainer):
    reporting = reporting_to_train_job(trainer.environment, print, every_s=60)

    def failing():
        with reporting as (tracker,), tracker.progress("train", 4) as progress:
            progress.advance()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert [status["progressPercentage"] for status in trainer.posted] == [25]


def test_a_replaced_token_is_read_anew(trainer, tmp_path):
    (tmp_path / "token").write_text("expired")
    said = []
    with (
        reporting_to_train_job(trainer.environment, said.append, every_s=0.01) as (tracker,),
        tracker.progress("train", 4) as progress,
    ):
        progress.advance()
        assert trainer.arrived.wait(10)
        (tmp_path / "token").write_text(TOKEN)
    assert trainer.posted
    assert len(said) == 1
    assert "HTTP 403" in said[0]
    assert "expired" not in said[0]


def test_a_server_of_another_certificate_gets_no_token(trainer, tmp_path):
    other = certificate(tmp_path / "other").certificate
    trainer.environment[CERTIFICATE_VARIABLE] = str(other)
    said = []
    reported(trainer, said)
    assert trainer.posted == []
    assert "CERTIFICATE_VERIFY_FAILED" in said[0]


@pytest.mark.parametrize("change", [{URL_VARIABLE: "https://127.0.0.1:1/"}, {TOKEN_VARIABLE: "/x"}])
def test_a_server_that_is_away_or_fails_costs_one_line(trainer, change):
    trainer.refusal, said = 500, []
    reported(trainer, said)
    assert len(said) == 1
    assert "HTTP 500" in said[0]
    trainer.environment |= change
    reported(trainer, said)
    assert len(said) == 2
    del trainer.environment[TOKEN_VARIABLE]  # outside of a TrainJob nothing is reported
    with reporting_to_train_job(trainer.environment, print) as trackers:
        assert trackers == ()


def test_steps_of_an_earlier_attempt_count_as_progress():
    tracker = TrainJobTracker(clock=iter(range(100)).__next__)
    tracker.metrics({"loss": 1.0})
    assert tracker.status() == {}, "work has not begun"
    with tracker.progress("train", 100) as progress:
        progress.advance(60)
        assert tracker.status()["progressPercentage"] == 60
        progress.advance(1)
        # 39 steps at the pace of the one step of this attempt
        assert tracker.status()["estimatedRemainingSeconds"] == 39
