"""The sandbox image that the tests' pods run, built as sandbox-images/README.md says, and kept."""

import hashlib
import os
import subprocess

from espalier import __version__
from tests.cluster.places import REPOSITORY, ClusterError

PYTHON = f"localhost/espalier-sandbox-python:{__version__}"
_SCRIPT = REPOSITORY / "sandbox-images" / "build.sh"
_SOURCES = ("sandbox-images", "components/sandboxd", "constraints.txt")
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
    podman = f"podman --root={places.cache}/podman --runroot={places.cache}/podman-run"
    _run([str(_SCRIPT), "python"], podman)
    partial = kept.with_suffix(".partial")
    _run(
        [*podman.split(), "save", "--format=docker-archive", f"--output={partial}", PYTHON], podman
    )
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
