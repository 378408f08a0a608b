r"""Program that keeps the served version equal to the alias `champion`; a Deployment of `k8s/`.

    python -m espalier.serving.controller --model espalier-search-agent \
        --namespace espalier-pipeline

It rolls the pods out to the version that the alias points at, where a gate pass or a forced reason
is recorded, and requests one token from them when they are ready. Where a roll-out fails, it rolls
back to the last good version and reports the reason: in its log, as an event of the Deployment
(kubectl describe deployment espalier-serving), and in the version's tags espalier.serving and
serving_reason. It never moves the alias. A failed version is tried again when it is promoted again,
or when the annotation espalier.dev/failed is removed.
`kubernetes.serving` of the profile selects a Deployment or KServe's LLMInferenceService.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from espalier.cluster.objects.serving import KEY_VARIABLE
from espalier.config import ControllerConfig, KubernetesConfig
from espalier.determinism import prepare_environment
from espalier.records import EspalierError, RegistryError, ServingError
from espalier.serving.controller_metrics import ControllerMetrics
from espalier.serving.deployment import ServingDeployment
from espalier.serving.following import Follower, HealthProbe, VersionSource
from espalier.serving.llm_services import ServingLlmService
from espalier.serving.workload import Workload, WorkloadSettings, connected
from espalier.steps.profiles import named_profile

log = logging.getLogger(__name__)

_MLFLOW = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Defaults of MLflow's client: few retries, because the controller repeats its whole step."""
_MISSED_PAUSES = 3
"""Number of longest pauses without a step after which /healthz fails."""


class Heartbeat:
    """Time and result of the controller's last step, which the cluster's probes read.

    An unreachable API server fails /readyz, but not /healthz: a restart would not help.
    """

    def __init__(self, config: ControllerConfig, clock: Callable[[], float]) -> None:
        self._longest_s = _MISSED_PAUSES * (config.max_backoff_s + config.poll_s)
        self._clock = clock
        self._beat_s = clock()
        self._fault: str | None = "no step was made yet"

    @classmethod
    @contextmanager
    def serving(
        cls,
        port: int,
        config: ControllerConfig,
        clock: Callable[[], float],
        metrics: ControllerMetrics | None = None,
    ) -> Iterator[Heartbeat]:
        """Answer /healthz, /readyz and /metrics while the block runs.

        Raises:
            ServingError: the port is in use.
        """
        heartbeat = cls(config, clock)
        shown = metrics or ControllerMetrics()
        try:
            server = ThreadingHTTPServer(("", port), _handler(heartbeat, shown))
        except OSError as error:
            raise ServingError(
                f"port {port}: cannot be served on ({error}); choose --port"
            ) from error
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield heartbeat
        finally:
            server.shutdown()
            server.server_close()

    def beat(self, *, fault: str | None) -> None:
        """Record a step; `fault` is the reason of its failure, None where it succeeded."""
        self._beat_s, self._fault = self._clock(), fault

    def fault(self, path: str) -> str | None:
        """The reason why /healthz or /readyz fails; None where it succeeds."""
        silent_s = self._clock() - self._beat_s
        if silent_s > self._longest_s:
            return f"no step for {silent_s:.0f} s"
        return self._fault if path == "/readyz" else None


def _handler(heartbeat: Heartbeat, metrics: ControllerMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds after which a silent connection is closed

        def do_GET(self) -> None:
            """Answer a probe or a scrape."""
            if self.path == "/metrics":
                self._answer(200, metrics.text(), CONTENT_TYPE_PLAIN_0_0_4)
                return
            known = self.path in ("/healthz", "/readyz")
            fault = heartbeat.fault(self.path) if known else "no such path"
            status = 200 if fault is None else 503 if known else 404
            self._answer(status, f"{fault or 'ok'}\n".encode(), "text/plain; charset=utf-8")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    return Handler


def follow(
    follower: Follower,
    config: ControllerConfig,
    heartbeat: Heartbeat,
    stop: threading.Event,
    jitter: Callable[[], float] = random.random,
    metrics: ControllerMetrics | None = None,
) -> None:
    """Make steps until `stop` is set; consecutive faults lengthen the pause (`pause_s`)."""
    counted = metrics or ControllerMetrics()
    faults = 0
    while not stop.is_set():
        try:
            follower.step()
            faults = 0
            heartbeat.beat(fault=None)
            counted.count_step("ok", time.time())
        except (ServingError, RegistryError) as error:
            faults += 1
            heartbeat.beat(fault=str(error))
            counted.count_step("fault", time.time())
            log.warning("%s", error)
        stop.wait(pause_s(config, faults, jitter()))


def pause_s(config: ControllerConfig, faults: int, jitter: float) -> float:
    """Seconds to the next step: `poll_s`, doubled with each consecutive fault.

    Args:
        config: `max_backoff_s` is the longest pause.
        faults: consecutive steps that failed.
        jitter: 0 to 1; shortens the pause after a fault by up to a half.
    """
    longest = min(config.max_backoff_s, config.poll_s * 2 ** min(faults, 16))
    return config.poll_s if not faults else longest * (0.5 + jitter / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the controller until SIGTERM or SIGINT."""
    given = argument_parser().parse_args(arguments)
    prepare_environment()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    for client in ("httpx2", "urllib3"):  # they log every request
        logging.getLogger(client).setLevel(logging.ERROR)
    stop = threading.Event()

    def leave(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, leave)
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)
    try:
        _follow_cluster(given, stop)
    except EspalierError as error:
        sys.exit(f"error: {error}")


def _follow_cluster(given: argparse.Namespace, stop: threading.Event) -> None:
    profile = named_profile(given.profile, given.set_ or ())
    config = profile.serving.controller
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ServingError("MLFLOW_TRACKING_URI is not set; name the registry to follow")
    key = os.environ.get(KEY_VARIABLE) or None
    verify = not (profile.kubernetes.serving == "llmisvc" and profile.kubernetes.llmisvc.tls)
    metrics = ControllerMetrics()
    follower = Follower(
        VersionSource(uri, given.model),
        _workload(given, profile.kubernetes),
        HealthProbe(key, verify=verify),
        health_attempts=config.health_attempts,
        metrics=metrics,
    )
    with Heartbeat.serving(given.port, config, time.monotonic, metrics) as heartbeat:
        follow(follower, config, heartbeat, stop, metrics=metrics)


def _workload(given: argparse.Namespace, kubernetes: KubernetesConfig) -> Workload:
    settings = WorkloadSettings(
        namespace=given.namespace,
        model=given.model,
        queue=kubernetes.queue,
        url=given.serving_url,
    )
    api = connected(given.kubeconfig)
    if kubernetes.serving == "llmisvc":
        return ServingLlmService(api, settings, kubernetes.llmisvc)
    return ServingDeployment(api, settings)


def argument_parser() -> argparse.ArgumentParser:
    """Parser of the controller's arguments."""
    parser = argparse.ArgumentParser(
        prog="espalier.serving.controller",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="registered model whose champion is served")
    parser.add_argument("--namespace", required=True, help="namespace of the serving workload")
    parser.add_argument("--serving-url", help="URL of the health check; default: the pods' Service")
    parser.add_argument("--port", type=int, default=8081, help="port of probes and /metrics")
    parser.add_argument("--kubeconfig", type=Path, help="needed outside the cluster")
    parser.add_argument("--profile", default="laptop", help="gives [serving] and [kubernetes]")
    parser.add_argument("--set", dest="set_", action="append", metavar="SECTION.KEY=VALUE")
    return parser


if __name__ == "__main__":
    main()
