"""A stage's progress in the status of its TrainJob (`status.trainerStatus`).

Kubeflow Trainer 2.3 gives the pods of a TrainJob the address of its status server, the certificate
of that, and a token for this TrainJob alone, where its feature gate TrainJobStatus is open
(pkg/runtime/framework/plugins/trainjobstatus). What is posted there is the request of
pkg/apis/trainer/v1alpha1/trainjob_types.go, UpdateTrainJobStatusRequest:

    {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 90,
                       "metrics": [{"name": "reward", "value": "0.431"}],
                       "lastUpdatedTime": "2026-03-04T12:00:00Z"}}

A thread posts the newest figures every few seconds. A server that is away or refuses costs a line,
and never the stage.
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
"""The latter two name files."""
REPORT_EVERY_S = 10.0
"""Trainer's server takes five requests a second of all TrainJobs together."""
_MAX_INT32 = (1 << 31) - 1
_REQUEST_S = 5.0
_LAST_REPORT_S = 2 * _REQUEST_S
_REPORTED = (
    "loss", "reward", "pass_rate", "dev_em", "entropy", "grad_norm", "learning_rate", "tokens",
)  # fmt: skip
"""Figures of a step that are reported, besides its number; the others are in MLflow."""


class StatusServer:
    """Where the status of this pod's TrainJob is posted."""

    def __init__(self, url: str, certificate: Path, token: Path) -> None:
        """Name the server; nothing is read or requested yet.

        Args:
            url: of the TrainJob's status, https.
            certificate: file with the certificate that the server's is signed by.
            token: file with the bearer token, which the kubelet replaces before it expires.
        """
        self._url, self._certificate, self._token = urlsplit(url), certificate, token

    def post(self, status: JsonObject) -> str | None:
        """Post a trainerStatus; why that failed, or None."""
        try:
            context = ssl.create_default_context(cafile=str(self._certificate))
            token = self._token.read_text(encoding="ascii").strip()
            host, port = self._url.hostname or "", self._url.port
            # neither a proxy nor a redirect: the token is for this server
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
                said = answer.read(500).decode(errors="replace").strip()
                return f"HTTP {answer.status} {said}"
            finally:
                server.close()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"


class TrainJobTracker(NullTracker):
    """Collects what is reported of a stage: its progress, and figures of the newest step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pace = Pace(0, clock)
        self._figures: dict[str, float] = {}

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Take figures of a step; those of the whole stage are in MLflow."""
        if step is None:
            return
        named = {name: values[name] for name in _REPORTED if name in values}
        with self._lock:
            self._figures |= {"step": float(step), **named}

    @contextmanager
    def progress(self, description: str, total: int) -> Generator[WorkProgress]:
        """Count units of the newest piece of work."""
        with self._lock:
            self._pace = pace = Pace(total, self._clock)
        yield _Counted(pace, self._lock)

    def status(self) -> JsonObject:
        """The trainerStatus, without its time; empty as long as nothing is known."""
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
        """Count."""
        with self._lock:
            self._pace.advance(count)


class _Reporter:
    """The thread that posts."""

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
        """Post what is newest, for as long as `within_s`."""
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
            self._say(f"progress is not shown in the status of the TrainJob: {fault}")
        self._last_fault = fault


@contextmanager
def reporting_to_train_job(
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    every_s: float = REPORT_EVERY_S,
) -> Generator[Sequence[Tracker]]:
    """A tracker whose figures are posted to the TrainJob of this pod, or none elsewhere.

    Args:
        environment: of this process.
        say: takes a line, from another thread, where a report fails for a new reason.
        every_s: how often something new is posted.
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
    except Exception:  # and not at a signal: a step that is stopped has no time for a report
        reporter.end(within_s=_LAST_REPORT_S)
        raise
    reporter.end(within_s=_LAST_REPORT_S)
