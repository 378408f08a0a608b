"""Starting the parts of the cluster, waiting for them, and ending everything that they left."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.cluster.network import inside, members
from tests.cluster.places import ClusterError

_CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "espalier-cluster"
"""Above those of all pods, in every hierarchy: another kubelet of this machine has others."""
_POLL_S = 0.2
_SAID_CHARACTERS = 2000


def start(places, name, *command, environment=None):
    """Start a part in the background, with its log in the state folder.

    Args:
        places: of the cluster.
        name: of the part.
        command: program and arguments.
        environment: variables besides PATH, HOME and LANG.
    """
    path = f"{places.programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    # a service's environment: nothing of whoever called, proxies and credentials least of all
    own = {"PATH": path, "HOME": str(places.state), "LANG": "C.UTF-8"}
    with (places.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            inside(*command),
            cwd=places.state,
            env=own | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (places.state / "pids").mkdir(exist_ok=True)
    (places.state / "pids" / name).write_text(str(process.pid))


def wait_until(places, name, is_ready, *, timeout_s):
    """Poll until the part is ready.

    Raises:
        ClusterError: it ended, or its time is up; with the end of its log.
    """
    end = time.monotonic() + timeout_s
    while not is_ready():
        if pid_of(places, name) is None:
            raise ClusterError(f"{name} ended: {_said(places, name)}")
        if time.monotonic() > end:
            raise ClusterError(f"{name} not ready after {timeout_s} s: {_said(places, name)}")
        time.sleep(_POLL_S)


def pid_of(places, name):
    """Of a running part, else None."""
    path = places.state / "pids" / name
    pid = int(path.read_text()) if path.exists() else 0
    return pid if pid and _is_alive(pid) else None


def running(places):
    """Names of the parts that run."""
    folder = places.state / "pids"
    names = sorted(path.name for path in folder.glob("*")) if folder.exists() else []
    return [name for name in names if pid_of(places, name) is not None]


def stop(places, name, *, grace_s=10.0):
    """End one part: it is asked first, and killed when it does not listen."""
    pid = pid_of(places, name)
    if pid is not None:
        _signal(pid, signal.SIGTERM)
        _wait_for_end([pid], grace_s)
        _signal(pid, signal.SIGKILL)
        _wait_for_end([pid], 5.0)
    (places.state / "pids" / name).unlink(missing_ok=True)


def end_everything():
    """Kill what lives in the cluster's network or cgroups: shims, containers, what was missed."""
    for _ in range(50):
        left = {*members(), *_in_cgroups()} - {os.getpid(), os.getppid()}
        if not left:
            return
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    raise ClusterError(f"processes that do not end: {sorted(left)}")


def unmount(folder):
    """Unmount everything below a folder, the innermost first."""
    below = f"{folder}/"
    for mounted in reversed(_mounted()):
        if mounted.startswith(below):
            subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
    if left := [mounted for mounted in _mounted() if mounted.startswith(below)]:
        raise ClusterError(f"still mounted: {', '.join(left)}")


def cgroup_roots():
    """The one of version 2, or the one of each controller; links name some of them twice."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return {_CGROUPS}
    return {path.resolve() for path in _CGROUPS.glob("*") if (path / "cgroup.procs").exists()}


def make_cgroups():
    """Make the one that all pods are in."""
    for root in cgroup_roots():
        (root / CGROUP).mkdir(exist_ok=True)


def remove_cgroups():
    """Remove the cgroups of pods, which are empty by now."""
    for folder in _own_cgroups():
        for path in sorted(folder.rglob("*"), key=lambda path: -len(path.parts)):
            if path.is_dir():
                path.rmdir()
        folder.rmdir()


def left_over(folder):
    """What a cluster left on the machine, in words; empty is as it should be."""
    below = f"{folder}/"
    mounts = [f"mount {path}" for path in _mounted() if path.startswith(below)]
    return [
        *mounts,
        *(f"process {pid}" for pid in members()),
        *(f"cgroup {path}" for path in _own_cgroups()),
    ]


def _own_cgroups():
    return sorted(path for root in cgroup_roots() if (path := root / CGROUP).is_dir())


def _in_cgroups():
    for folder in _own_cgroups():
        for path in folder.rglob("cgroup.procs"):
            yield from map(int, path.read_text().split())


def _mounted():
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4].replace("\\040", " ") for line in lines]


def _is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_for_end(pids, timeout_s):
    end = time.monotonic() + timeout_s
    while any(map(_is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _said(places, name):
    text = (places.logs / f"{name}.log").read_text(errors="replace")
    return text[-_SAID_CHARACTERS:].strip() or "it said nothing"
