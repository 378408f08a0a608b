r"""What an image holds, as CycloneDX 1.6 JSON: Python's packages and Debian's.

    podman export CONTAINER | python components/image_contents.py --name espalier-cpu \
      --version 0.2.0 --out espalier-cpu.cdx.json

Nothing of the image is run. Its files come as a tar; of these the metadata of packages is laid out
in a folder, where cyclonedx-py (cyclonedx-bom) reads each Python environment and dpkg-query the
distribution's database; cyclonedx-python-lib joins, checks and writes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

_METADATA = re.compile(r"(?P<site>.+/(?:site|dist)-packages)/[^/]+\.(?:dist|egg)-info(?:/[^/]+)?")
_DATABASE = re.compile(r"var/lib/dpkg/(?:status|info/format|arch)")
_RELEASE = "usr/lib/os-release"
_CPYTHON = re.compile(r"(?P<prefix>.+)/include/python3\.\d+/patchlevel\.h")
_LOCATION = "espalier:location"
"""Property of a Python package: the folder that it lies in."""
_FIELDS = (
    "${db:Status-Status}",
    "${Package}",
    "${Version}",
    "${Architecture}",
    "${source:Package}",
)


class ContentsError(Exception):
    """The contents of an image cannot be listed."""


def bill_of_materials(files: IO[bytes], *, name: str, version: str) -> str:
    """The list of an image's contents, as JSON.

    Args:
        files: the image's file system as a tar, such as `podman export` writes it.
        name: of the image.
        version: of the image, its tag.

    Raises:
        ContentsError: no package was found, a tool failed, or its result is not CycloneDX.
    """
    with tempfile.TemporaryDirectory(prefix="image-contents-") as temporary:
        root = Path(temporary) / "root"
        try:
            sites, pythons = _laid_out(files, root)
        except tarfile.TarError as error:
            raise ContentsError(f"{name}: its files are no tar ({error})") from error
        found = [
            *(part for site in sites for part in _python_packages(root, site, Path(temporary))),
            *_interpreters(root, pythons),
            *_debian_packages(root),
        ]
    if not found:
        raise ContentsError(f"{name}: the tar holds neither Python's packages nor Debian's")
    bom = Bom(components=found)
    bom.metadata.component = image = Component(
        type=ComponentType.CONTAINER, name=name, version=version, bom_ref=f"{name}:{version}"
    )
    bom.register_dependency(image, found)
    written = JsonV1Dot6(bom).output_as_string(indent=1)
    from cyclonedx.validation.json import JsonStrictValidator  # a second of grammars

    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(written):
        raise ContentsError(f"{name}: {fault}")
    return written


def _laid_out(files: IO[bytes], root: Path) -> tuple[list[str], list[str]]:
    """Write what says which packages there are below `root`; folders of packages, headers."""
    sites: set[str] = set()
    pythons: set[str] = set()
    root.mkdir()
    with tarfile.open(fileobj=files, mode="r|*") as tar:
        for member in tar:
            path = PurePosixPath(member.name).as_posix()  # without a leading ./
            if not member.isfile() or ".." in path.split("/"):
                continue
            if match := _METADATA.fullmatch(path):
                sites.add(match["site"])
            elif _CPYTHON.fullmatch(path):
                pythons.add(path)
            elif not _DATABASE.fullmatch(path) and path != _RELEASE:
                continue
            content = tar.extractfile(member)
            assert content is not None, "a regular file has a content"
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
    return sorted(sites), sorted(pythons)


def _python_packages(root: Path, site: str, temporary: Path) -> Iterator[Component]:
    """Packages of one folder; cyclonedx-py asks an interpreter for its path, and gets this one."""
    interpreter = temporary / "python"
    interpreter.write_text(f"#!/bin/sh\necho '{json.dumps([str(root / site)])}'\n")
    interpreter.chmod(0o755)
    said = _output(
        sys.executable, "-m", "cyclonedx_py", "environment", str(interpreter),
        "--output-reproducible", "--spec-version", "1.6", "--output-format", "JSON",
    )  # fmt: skip
    bom = Bom.from_json(json.loads(said))
    for component in bom.components:
        component.bom_ref.value = f"/{site}/{component.name}@{component.version}"
        component.properties.add(Property(name=_LOCATION, value=f"/{site}"))
        yield component


def _interpreters(root: Path, headers: Iterable[str]) -> Iterator[Component]:
    """Pythons that are no package, as in the images of Docker's library, by their C header."""
    for path in headers:
        if path.startswith("usr/include/"):  # Debian's, which its database has
            continue
        version = re.search(r'PY_VERSION\s+"([^"]+)"', (root / path).read_text(encoding="utf-8"))
        if version is None:
            raise ContentsError(f"/{path} names no version of Python")
        yield Component(
            type=ComponentType.APPLICATION,
            name="python",
            version=version[1],
            purl=PackageURL("generic", name="python", version=version[1]),
            cpe=f"cpe:2.3:a:python:python:{version[1]}:*:*:*:*:*:*:*",
            bom_ref=f"/{path}@{version[1]}",
        )


def _debian_packages(root: Path) -> Iterator[Component]:
    """Installed packages, as the database of the image says."""
    if not (root / "var/lib/dpkg/status").exists():
        return
    release = dict(
        line.split("=", 1)
        for line in (root / _RELEASE).read_text(encoding="utf-8").splitlines()
        if "=" in line
    )
    distro = f"{release['ID']}-{release['VERSION_ID']}".replace('"', "")
    listed = _output(
        "dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "--show",
        f"--showformat={'|'.join(_FIELDS)}\\n",
    )  # fmt: skip
    for line in listed.splitlines():
        status, name, version, architecture, source = line.split("|")
        if status != "installed":
            continue
        qualifiers = {"arch": architecture, "distro": distro}
        if source != name:
            qualifiers["upstream"] = source  # under which scanners find advisories
        purl = PackageURL("deb", release["ID"], name, version, qualifiers)
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version,
            purl=purl,
            bom_ref=purl.to_string(),
        )


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ContentsError(f"{' '.join(command[:3])}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Read a tar from standard input, and write its list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        text = bill_of_materials(sys.stdin.buffer, name=given.name, version=given.version)
    except ContentsError as error:
        sys.exit(f"error: {error}")
    given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
