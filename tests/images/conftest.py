"""Images that `make test-images` built, each started as a pod starts it.

Reads dist/images/images.json, or that in the folder ESPALIER_IMAGES. CONTAINERS_STORAGE_CONF says
where podman has them, if not in its own place.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ESPALIER_IMAGES", ROOT / "dist" / "images"))
_LIST = FOLDER / "images.json"
BUILT = json.loads(_LIST.read_text()) if _LIST.exists() else {}
SANDBOXES = [name for name in BUILT if name.startswith("sandbox-")]

AS_IN_A_POD = (
    "--rm", "--pull=never", "--network=none", "--read-only", "--cap-drop=all",
    "--security-opt=no-new-privileges", "--ulimit=nofile=4096:4096", "--ulimit=nproc=1024:1024",
    "--tmpfs=/tmp:rw,mode=1777",
)  # fmt: skip
"""As the pods of k8s/: nobody's user, a root that is only read, no capability; and no network."""


class Output(NamedTuple):
    code: int
    out: str
    err: str


def pytest_collection_modifyitems(items):
    reason = ""
    if shutil.which("podman") is None:
        reason = "podman is not installed"
    elif not BUILT:
        reason = f"{_LIST} is not there: make test-images builds what is tested"
    for item in items:
        if reason and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=reason))


def podman(*arguments, timeout_s=600):
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Output(done.returncode, done.stdout, done.stderr)


def run(name, program, *arguments, flags=()):
    """Run a program of an image and return what it said."""
    return podman(
        "run", *AS_IN_A_POD, *flags, f"--entrypoint={program}", BUILT[name]["image"], *arguments
    )


def started(name, *arguments):
    """Run an image as it is, with arguments for its entry point."""
    return podman("run", *AS_IN_A_POD, BUILT[name]["image"], *arguments)
