"""Serves one sandbox, as its pid 1; all settings are environment variables.

SANDBOXD_TOKEN_SHA256   hex digest of the token; the token itself is never in the sandbox
SANDBOXD_LISTEN         "fd:3" for an inherited socket, or "0.0.0.0:8000"
SANDBOXD_LIMITS         JSON of `Limits`: the maximum limits of this sandbox
SANDBOXD_WORKSPACE      default /workspace
SANDBOXD_PREIMPORT      modules imported before Python runs, default "numpy"; missing ones are
                        skipped
SANDBOXD_OWN_USER       "1" if no process outside this sandbox has its user id: then the kernel's
                        process limit per user is the sandbox's (detected with a user namespace)
SANDBOXD_SOCKETS        "local" forbids runs to open internet sockets, also for loopback; default
                        "internet", for a network namespace without routes to the outside
SANDBOXD_LIFELINE       "fd:4": sandboxd ends when this pipe closes, because its creator is gone
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn

from sandboxd import kernel
from sandboxd.app import Server
from sandboxd.framing import StrictProtocol
from sandboxd.kernel import has_own_users
from sandboxd.metrics import Metrics
from sandboxd.runs import FILE_THREADS, Runs
from sandboxd.seccomp import job_filter
from sandboxd.watchdog import countable, watch
from sandboxd.wire import Limits
from sandboxd.workspace import Workspace

_OTHER_FOLDERS = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
_KEEP_ALIVE_S = 24 * 3600
"""Long: a connection closed while a request is sent looks like a lost run to the client."""


def main(environment: Mapping[str, str]) -> None:
    """Serve until a signal comes or the lifeline closes."""
    if os.getpid() != 1:
        sys.exit("sandboxd must be pid 1 of a sandbox: ending runs kills every process it sees")
    kernel.settle_project_ids()
    kernel.hide_memory()  # second: afterwards /proc/self belongs to root and cannot be written
    job_filter(os.uname().machine, ())  # an unknown machine fails here, not in the first job
    digest = environment["SANDBOXD_TOKEN_SHA256"]
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        sys.exit("SANDBOXD_TOKEN_SHA256 must be 64 hex digits")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    limits = Limits.parse(json.loads(environment.get("SANDBOXD_LIMITS", "{}")))
    asyncio.run(_serve(environment, digest, limits))


async def _serve(environment: Mapping[str, str], digest: str, limits: Limits) -> None:
    workspace = Path(environment.get("SANDBOXD_WORKSPACE", "/workspace"))
    metrics = Metrics()
    asyncio.get_running_loop().set_default_executor(_file_threads())
    preimport = environment.get("SANDBOXD_PREIMPORT", "numpy").replace(",", " ").split()
    has_own_user = has_own_users() or environment.get("SANDBOXD_OWN_USER") == "1"
    others = [folder for folder in _OTHER_FOLDERS if os.access(folder, os.W_OK)]
    runs = Runs(
        [workspace, *others],
        limits,
        preimport,
        metrics,
        counts_processes=has_own_user,
        internet_sockets=_has_internet_sockets(environment.get("SANDBOXD_SOCKETS", "internet")),
    )
    server = Server(runs, Workspace(workspace, others), limits, metrics)
    await runs.start()
    http = uvicorn.Server(
        uvicorn.Config(
            server.app(digest),
            http=StrictProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
    )
    if lifeline := environment.get("SANDBOXD_LIFELINE"):
        asyncio.get_running_loop().add_reader(_descriptor(lifeline), _stop, http)
    watching = asyncio.create_task(watch(runs, limits, countable([workspace, *others])))
    await http.serve(sockets=[listening(environment["SANDBOXD_LISTEN"])])
    watching.cancel()
    if "SANDBOXD_LIFELINE" not in environment:
        # uvicorn ends after a signal, but with status 0 the kubelet would report an evicted pod as
        # Succeeded and drop the reason of its end
        sys.exit(128 + signal.SIGTERM)


def _file_threads() -> ThreadPoolExecutor:
    """The threads for files; all are started now, because runs' filters protect only live ones."""
    threads = ThreadPoolExecutor(FILE_THREADS)
    together = threading.Barrier(FILE_THREADS + 1)
    for _ in range(FILE_THREADS):
        threads.submit(together.wait)
    together.wait()
    return threads


def _has_internet_sockets(sockets: str) -> bool:
    if sockets not in ("internet", "local"):
        sys.exit('SANDBOXD_SOCKETS must be "internet" or "local"')
    return sockets == "internet"


def listening(where: str) -> socket.socket:
    """The listening socket, inherited ("fd:3") or opened on an address ("0.0.0.0:8000")."""
    if where.startswith("fd:"):
        return socket.socket(fileno=_descriptor(where))
    host, _, port = where.rpartition(":")
    listener = socket.create_server((host, int(port)))
    # asyncio sets TCP_NODELAY on accepted sockets only if the listening socket has an explicit
    # protocol, unlike create_server's. Without it a body waits 40 ms for the ACK of its head
    return socket.socket(
        listener.family, listener.type, socket.IPPROTO_TCP, fileno=listener.detach()
    )


def _descriptor(named: str) -> int:
    descriptor = int(named.removeprefix("fd:"))
    os.set_inheritable(descriptor, False)  # noqa: FBT003 as os has it
    return descriptor


def _stop(http: uvicorn.Server) -> None:
    http.should_exit = True


if __name__ == "__main__":
    main(os.environ)
