"""A warm interpreter that forks runners, so that they need not import its modules again.

    python -m sandboxd.spawner CHANNEL MODULE...

Every message on the channel has the descriptors of one run (`ORDER`). The spawner is spawned, not
forked, so that runners never have a copy of sandboxd's memory.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from sandboxd import kernel, runner
from sandboxd.seccomp import job_filter

READY = b"ready"
_SOONER_THAN_SANDBOXD = 500
"""Added to oom_score_adj, which forks inherit, so that jobs are killed before sandboxd."""
_MOST_SCORE = 1000
_ALL_DESCRIPTORS = 2**20
ORDER = ("orders", "stdin", "stdout", "stderr", "report", "control")
"""Names of a message's descriptors in order; `control` only for a session."""


def main(arguments: Sequence[str]) -> None:
    """Import the modules that are installed, then fork runners until the channel closes."""
    os.setsid()
    os.closerange(int(arguments[0]) + 1, _ALL_DESCRIPTORS)  # such as the listening socket
    _go_before_sandboxd()
    kernel.hide_memory()
    kernel.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # runners report through their pipe instead
    for module in arguments[1:]:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    for internet_sockets in (True, False):  # fills the cache for the forks
        job_filter(os.uname().machine, (), internet_sockets=internet_sockets)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(arguments[0])) as channel:
        channel.set_inheritable(False)
        channel.send(READY)
        while _serve(channel):
            pass


def _go_before_sandboxd() -> None:
    """Raise oom_score_adj above sandboxd's, which may not be 0 in a pod and cannot be lowered."""
    with open("/proc/self/oom_score_adj", "r+b", buffering=0) as score:
        raised = min(int(score.read()) + _SOONER_THAN_SANDBOXD, _MOST_SCORE)
        score.write(str(raised).encode())


def _serve(channel: socket.socket) -> bool:
    message, descriptors, _, _ = socket.recv_fds(channel, 16, len(ORDER))
    if not message:
        return False
    try:
        forked = os.fork()
    except OSError as error:
        os.write(descriptors[ORDER.index("report")], runner.refusal(error))
    else:
        if forked == 0:
            channel.close()
            _become_runner(descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return True


def _become_runner(descriptors: Sequence[int]) -> NoReturn:
    try:
        for descriptor in descriptors:  # otherwise a spawned program would inherit them
            os.set_inheritable(descriptor, False)  # noqa: FBT003 as os has it
        held: dict[str, int] = dict(zip(ORDER, descriptors, strict=False))
        with os.fdopen(held.pop("orders"), "rb") as orders:
            runner.supervise(json.load(orders), held)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
