"""The sandbox image that the tests' pods run, built as sandbox-images/README.md says, and kept."""

import hashlib
import os
import shutil
import subprocess

from espalier import __version__
from tests.cluster.places import REPOSITORY, ClusterError

PYTHON = f"localhost/espalier-sandbox-python:{__version__}"
_SCRIPT = REPOSITORY / "sandbox-images" / "build.sh"
_SOURCES = ("sandbox-images", "components/sandboxd", "constraints.txt")
_RUN = "/run/espalier-images"
"""Of podman, while it builds: it takes no path of more than 50 characters, as a cache's may be."""
_SAID_CHARACTERS = 2000


def build(places):
    """Build and keep the image, unless one of the same sources is kept already."""
    kept = archive(places)
    if kept.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    for other in kept.parent.glob("*.tar"):
        other.unlink()
    # podman's own folders: nothing of it is left in the machine's
    podman = f"podman --root={places.cache}/podman --runroot={_RUN}"
    partial = kept.with_suffix(".partial")
    save = ["save", "--format=docker-archive", f"--output={partial}", PYTHON]
    try:
        _run([str(_SCRIPT), "python"], podman)
        _run([*podman.split(), *save], podman)
    finally:
        shutil.rmtree(_RUN, ignore_errors=True)
    partial.rename(kept)


def archive(places):
    """Where the archive of the present sources is kept."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        path = REPOSITORY / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.read_bytes())
    return places.cache / "images" / f"python-{digest.hexdigest()[:16]}.tar"


def _run(command, podman):
    done = subprocess.run(
        command,
        env={**os.environ, "PODMAN": podman},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-_SAID_CHARACTERS:]
        raise ClusterError(f"{' '.join(command)}: {said}")
