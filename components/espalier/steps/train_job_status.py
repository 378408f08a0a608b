"""A stage's progress in the status of its TrainJob (`status.trainerStatus`).

Where its feature gate TrainJobStatus is on, Kubeflow Trainer 2.3 gives the pods of a TrainJob the
address of its status server, the server's certificate, and a token for this TrainJob only
(pkg/runtime/framework/plugins/trainjobstatus). The posted request is UpdateTrainJobStatusRequest of
pkg/apis/trainer/v1alpha1/trainjob_types.go:

    {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 90,
                       "metrics": [{"name": "reward", "value": "0.431"}],
                       "lastUpdatedTime": "2026-03-04T12:00:00Z"}}

A thread posts the newest figures every few seconds. If the server is unreachable or refuses, a line
reports it, and the stage continues.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from espalier.records import JsonObject, NullTracker, Tracker
from espalier.records import Progress as WorkProgress
from espalier.steps.pace import Pace

URL_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
CERTIFICATE_VARIABLE = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_VARIABLE = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""Variables of certificate and token contain paths."""
REPORT_EVERY_S = 10.0
"""Seconds between reports: Trainer's server accepts five requests a second of all TrainJobs."""
_MAX_INT32 = (1 << 31) - 1
_REQUEST_S = 5.0
_LAST_REPORT_S = 2 * _REQUEST_S
_REPORTED = (
    "loss", "reward", "pass_rate", "dev_em", "entropy", "grad_norm", "learning_rate", "tokens",
)  # fmt: skip
"""Figures that are reported besides the step's number; the others are in MLflow."""


class StatusServer:
    """Client for the status of this pod's TrainJob."""

    def __init__(self, url: str, certificate: Path, token: Path) -> None:
        """Set URL and paths; nothing is read or requested yet.

        Args:
            url: https URL of the TrainJob's status.
            certificate: file with the certificate of the server's issuer.
            token: file with the bearer token, which the kubelet replaces before it expires.
        """
        self._url, self._certificate, self._token = urlsplit(url), certificate, token

    def post(self, status: JsonObject) -> str | None:
        """Post a trainerStatus; return the reason of a failure, or None."""
        try:
            context = ssl.create_default_context(cafile=str(self._certificate))
            token = self._token.read_text(encoding="ascii").strip()
            host, port = self._url.hostname or "", self._url.port
            # without proxies and redirects, because only this server may get the token
            server = http.client.HTTPSConnection(host, port, timeout=_REQUEST_S, context=context)
            try:
                server.request(
                    "POST",
                    self._url.path,
                    json.dumps({"trainerStatus": status}).encode(),
                    {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                )
                answer = server.getresponse()
                if answer.status == http.client.OK:
                    return None
                answer_text = answer.read(500).decode(errors="replace").strip()
                return f"HTTP {answer.status} {answer_text}"
            finally:
                server.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"


class TrainJobTracker(NullTracker):
    """Collects progress of a stage and figures of its newest step for reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pace = Pace(0, clock)
        self._figures: dict[str, float] = {}

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Keep figures of a step; figures without a step are only in MLflow."""
        if step is None:
            return
        named = {name: values[name] for name in _REPORTED if name in values}
        with self._lock:
            self._figures |= {"step": float(step), **named}

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[WorkProgress]:
        """Count units of the newest work, in place of any earlier one."""
        with self._lock:
            self._pace = pace = Pace(total, self._clock)
        yield _Counted(pace, self._lock)

    def status(self) -> JsonObject:
        """The trainerStatus without its time; empty before there is progress."""
        with self._lock:
            pace, figures = self._pace, dict(self._figures)
            left_s = pace.seconds_left()
            status: JsonObject = {}
            if pace.total:
                status["progressPercentage"] = min(100, 100 * pace.done // pace.total)
            if left_s is not None:
                status["estimatedRemainingSeconds"] = min(_MAX_INT32, round(left_s))
        if figures:
            status["metrics"] = [
                {"name": name, "value": f"{value:.6g}"} for name, value in figures.items()
            ]
        return status


class _Counted:
    def __init__(self, pace: Pace, lock: threading.Lock) -> None:
        self._pace, self._lock = pace, lock

    def advance(self, count: int = 1, **shown: float) -> None:
        """Count units of work."""
        with self._lock:
            self._pace.advance(count)


class _Reporter:
    """Thread that posts the status."""

    def __init__(
        self,
        server: StatusServer,
        tracker: TrainJobTracker,
        say: Callable[[str], None],
        *,
        every_s: float,
    ) -> None:
        self._server, self._tracker, self._say = server, tracker, say
        self._every_s = every_s
        self._posted: JsonObject = {}
        self._last_fault: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="train-job-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, *, within_s: float) -> None:
        """Post the newest status, and wait for that for at most `within_s` seconds."""
        self._ended.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._report()
        self._report()

    def _report(self) -> None:
        status = self._tracker.status()
        if not status or status == self._posted:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fault = self._server.post({**status, "lastUpdatedTime": now})
        if fault is None:
            self._posted = status
        elif fault != self._last_fault:
            self._say(f"the status of the TrainJob does not show the progress: {fault}")
        self._last_fault = fault


@contextmanager
def reporting_to_train_job(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    every_s: float = REPORT_EVERY_S,
) -> Generator[Sequence[Tracker]]:
    """A list with a tracker whose figures are posted to this pod's TrainJob; empty elsewhere.

    Args:
        environment: variables of this process.
        say: takes a line, in another thread, when a report fails for a new reason.
        every_s: seconds between reports.
    """
    names = (URL_VARIABLE, CERTIFICATE_VARIABLE, TOKEN_VARIABLE)
    given = [environment.get(name) for name in names]
    if not all(given):
        yield ()
        return
    url, certificate, token = (str(value) for value in given)
    tracker = TrainJobTracker()
    reporter = _Reporter(
        StatusServer(url, Path(certificate), Path(token)), tracker, say, every_s=every_s
    )
    reporter.start()
    try:
        yield (tracker,)
    except Exception:  # not at a signal (BaseException): a stopped step has no time for a report
        reporter.end(within_s=_LAST_REPORT_S)
        raise
    reporter.end(within_s=_LAST_REPORT_S)
