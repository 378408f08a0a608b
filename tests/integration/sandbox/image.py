"""A small sandbox image out of this Debian's own packages: no registry, no network, seconds.

    python -m tests.integration.sandbox.image

Its tag is the digest of the sandboxd in it, so that no test runs over an older one. Real images are
built from `sandbox-images/`; this one only has to run sandboxd and a shell.
"""

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import sandboxd
from espalier.sandbox.bubblewrap import ENVIRONMENT, python_mounts

REPOSITORY = "localhost/espalier-sandbox-test"
PACKAGES = ("bash", "coreutils", "dash", "procps", "python3.11-minimal", "libpython3.11-stdlib")
_FOLDERS = ("dev", "etc", "proc", "run", "sys", "usr/bin")
_WRITABLE = ("tmp", "workspace")
"""Mount points take the mode that their folder has in the image."""


def image_name() -> str:
    """The name that the image has for the sandboxd of this work tree."""
    digest = hashlib.sha256()
    for path in sorted(Path(sandboxd.__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{REPOSITORY}:{digest.hexdigest()[:16]}"


def import_image(name: str) -> None:
    """Build the image and hand it to podman."""
    podman = subprocess.Popen(["podman", "import", "-", name], stdin=subprocess.PIPE)
    assert podman.stdin is not None
    with tarfile.open(fileobj=podman.stdin, mode="w|") as archive:
        _fill(archive)
    podman.stdin.close()
    if podman.wait() != 0:
        raise RuntimeError(f"podman import ended with {podman.returncode}")


def _fill(archive: tarfile.TarFile) -> None:
    for folder in _FOLDERS:
        _add(archive, folder, tarfile.DIRTYPE, mode=0o755)
    for folder in _WRITABLE:
        _add(archive, folder, tarfile.DIRTYPE, mode=0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        _add(archive, name, tarfile.SYMTYPE, link=f"usr/{name}")
    for path in sorted(set(_files_of(_with_needs(PACKAGES)))):
        archive.add(path, str(path).lstrip("/"), recursive=False)
    for mount in python_mounts(()):
        if mount.target.is_relative_to(ENVIRONMENT):
            archive.add(mount.source, str(mount.target).lstrip("/"), filter=_without_caches)
    environment = str(ENVIRONMENT).lstrip("/")
    _add(archive, f"{environment}/pyvenv.cfg", tarfile.REGTYPE, content=b"home = /usr/bin\n")
    for name in ("python", "python3"):
        link = "/usr/bin/python3.11"
        _add(archive, f"{environment}/bin/{name}", tarfile.SYMTYPE, link=link)


def _add(archive, name, kind, *, mode=0o644, link="", content=b""):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname, member.size = kind, mode, link, len(content)
    archive.addfile(member, io.BytesIO(content))


def _without_caches(member):
    return None if "__pycache__" in PurePosixPath(member.name).parts else member


def _with_needs(packages: Iterable[str]) -> set[str]:
    waiting, found = list(packages), set()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        shown = _dpkg("-f", "${Status}, ${Depends}, ${Pre-Depends}", "-W", name) or ""
        if " installed," not in shown:
            continue  # an alternative that is not here, or a virtual package
        found.add(name)
        waiting += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", shown)
    return found


def _files_of(packages: Iterable[str]) -> Iterator[Path]:
    for line in (_dpkg("-L", *sorted(packages)) or "").splitlines():
        path = Path(line)
        if path.is_file() and not line.startswith(("/usr/share/doc", "/usr/share/man", "/etc")):
            yield path.parent.resolve() / path.name


def _dpkg(*arguments: str) -> str | None:
    done = subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    import_image(image_name())
