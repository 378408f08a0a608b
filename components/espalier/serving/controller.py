r"""Lets the serving Deployment follow `champion`; runs as a Deployment of `k8s/`.

    python -m espalier.serving.controller --model espalier-search-agent \
        --namespace espalier-pipeline

It serves what the alias points at where a gate pass or a forced reason is recorded, goes back to
the last good version where a roll-out fails, and says why: in its log, as an event of the
Deployment (kubectl describe deployment espalier-serving), and in the version's tag
espalier.serving_reason. A failed version is tried again when it is promoted again, or when the
annotation espalier.dev/failed is removed.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from espalier.config import ControllerConfig
from espalier.determinism import prepare_environment
from espalier.records import EspalierError, RegistryError, ServingError
from espalier.serving.champion import Registry
from espalier.serving.deployment import ServingDeployment
from espalier.serving.following import Follower
from espalier.serving.health_probe import HealthProbe
from espalier.serving.heartbeat import Heartbeat
from espalier.steps.profiles import named_profile

log = logging.getLogger(__name__)


def follow(
    follower: Follower,
    config: ControllerConfig,
    heartbeat: Heartbeat,
    stop: threading.Event,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Step until told to stop; what is away is asked again, after ever longer pauses."""
    faults = 0
    while not stop.is_set():
        try:
            follower.step()
            faults = 0
            heartbeat.beat(fault=None)
        except (ServingError, RegistryError) as error:
            faults += 1
            heartbeat.beat(fault=str(error))
            log.warning("%s", error)
        stop.wait(pause_s(config, faults, jitter()))


def pause_s(config: ControllerConfig, faults: int, jitter: float) -> float:
    """Seconds to the next step: doubled with each fault in a row, spread by `jitter` of 0 to 1."""
    longest = min(config.max_backoff_s, config.poll_s * 2 ** min(faults, 16))
    return config.poll_s if not faults else longest * (0.5 + jitter / 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow until SIGTERM."""
    given = _parser().parse_args(arguments)
    prepare_environment()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    for client in ("httpx2", "urllib3"):  # their own lines on every request say nothing new
        logging.getLogger(client).setLevel(logging.ERROR)
    stop = threading.Event()

    def leave(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, leave)
    try:
        _follow_cluster(given, stop)
    except EspalierError as error:
        sys.exit(f"error: {error}")


def _follow_cluster(given: argparse.Namespace, stop: threading.Event) -> None:
    config = named_profile(given.profile, given.set_ or ()).serving.controller
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ServingError("MLFLOW_TRACKING_URI names no registry whose champion could be followed")
    url = given.serving_url or f"http://espalier-serving.{given.namespace}.svc:8000"
    follower = Follower(
        Registry(uri, given.model),
        ServingDeployment.open(given.namespace, given.kubeconfig),
        HealthProbe(url, given.model),
        model=given.model,
        namespace=given.namespace,
        health_attempts=config.health_attempts,
    )
    with Heartbeat.serving(given.port, config, time.monotonic) as heartbeat:
        follow(follower, config, heartbeat, stop)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="espalier.serving.controller",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="registered model whose champion is served")
    parser.add_argument("--namespace", required=True, help="of the Deployment espalier-serving")
    parser.add_argument("--serving-url", help="default: the Service espalier-serving in it")
    parser.add_argument("--port", type=int, default=8081, help="of /healthz and /readyz")
    parser.add_argument("--kubeconfig", type=Path, help="outside the cluster: its configuration")
    parser.add_argument("--profile", default="laptop", help="whose [serving.controller] holds")
    parser.add_argument("--set", dest="set_", action="append", metavar="SECTION.KEY=VALUE")
    return parser


if __name__ == "__main__":
    main()
