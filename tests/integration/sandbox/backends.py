"""The backends that the suite runs over, and why one of them cannot run here."""

import os
import shutil
import subprocess
from collections.abc import Callable

from espalier.sandbox import Backend, Limits, LocalBackend, PodmanBackend
from tests.integration.sandbox.image import import_image

LIMITS = Limits(
    memory_bytes=256 * 2**20,
    cpu_s=4.0,
    processes=40,
    disk_bytes=80 * 2**20,
    output_bytes=64 * 1024,
    wall_s=15.0,
)
IMAGE = os.environ.get("ESPALIER_SANDBOX_IMAGE", "localhost/espalier-sandbox-test:latest")
_RUNTIMES = (None, "crun", "runc")
"""Debian's crun refuses machines whose cgroups are half of version 2; its runc does not."""


class AbsentError(Exception):
    """A backend that this machine does not have; the text is the reason to skip."""


def local() -> list[Backend]:
    return [LocalBackend(limits=LIMITS)]


def podman() -> list[Backend]:
    if "ESPALIER_TEST_PODMAN" not in os.environ:
        raise AbsentError("set ESPALIER_TEST_PODMAN=1 to test it, with nothing else running")
    if shutil.which("podman") is None:
        raise AbsentError("podman is not installed")
    if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode != 0:
        if shutil.which("dpkg-query") is None:
            raise AbsentError(f"no image {IMAGE}, and no Debian here to build it from")
        import_image(IMAGE)
    return [
        PodmanBackend(image=IMAGE, limits=LIMITS, preimport=(), runtime=runtime)
        for runtime in _RUNTIMES
    ]


BACKENDS: dict[str, Callable[[], list[Backend]]] = {"local": local, "podman": podman}
"""Of each kind the settings to try; the first that gives a sandbox is taken."""
