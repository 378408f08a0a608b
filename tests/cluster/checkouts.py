"""Programs of other projects, built once from checkouts of their sources and kept with a stamp."""

import hashlib
import re
import subprocess
import time

from tests.cluster import building
from tests.cluster.places import ClusterError

GO_SOURCES = ("*.go", "go.mod")


def build_once(checkout, package, output, *flags, state, needs_cgo=False):
    """Build a program of a checkout unless what is kept was built from the same sources.

    Args:
        checkout: where Go runs; it stays as it is.
        package: of the program.
        output: the program's path.
        flags: of `go build`, after our own.
        state: of everything that decides what the program is, see `state_of`.
        needs_cgo: whether it has parts in C.

    Returns:
        Seconds that it took; 0 where it was kept.

    Raises:
        ClusterError: Go says why it cannot be built.
    """
    stamp = output.with_name(f".{output.name}")
    if output.exists() and stamp.exists() and stamp.read_text() == state:
        return 0.0
    started = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    building.go(
        checkout, "build", "-buildvcs=false", *flags, "-ldflags", "-s -w", "-o", str(output),
        package, needs_cgo=needs_cgo,
    )  # fmt: skip
    stamp.write_text(state)
    return time.monotonic() - started


def state_of(checkout, *paths, of=""):
    """Of everything that decides what is built: commit, what differs from it, what is asked for."""
    commit = git(checkout, "rev-parse", "HEAD")
    changes = git(checkout, "status", "--porcelain", "--", *(paths or GO_SOURCES))
    return hashlib.sha256(f"{of} {commit} {changes}".encode()).hexdigest()


def git(checkout, *arguments):
    """What git says of a checkout.

    Raises:
        ClusterError: it is none.
    """
    done = subprocess.run(
        ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ClusterError(f"{checkout} is no git checkout: {done.stderr.strip()}")
    return done.stdout.strip()


def required(go_mod, module):
    """The version of a module that a go.mod requires."""
    (version,) = re.findall(rf"^\s+{re.escape(module)} (v\S+)", go_mod.read_text(), re.M)
    return version
