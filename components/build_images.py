"""Builds the images of the pipeline and of sandboxes, each with a list of what it holds.

    python components/build_images.py build                     all but rollout
    python components/build_images.py build cpu sandbox-python  these
    python components/build_images.py build --own-base cpu      on a base of debootstrap (root)
    python components/build_images.py push --registry registry.example/team

Writes OUT/espalier-NAME.cdx.json for each image (CycloneDX, by image_contents.py) and
OUT/images.json with names, digests and sizes, and prints the digests. A label of the image has the
list's SHA-256.
Needs podman; --engine may be another command of its language, such as podman with its own --root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIPELINE = ("cpu", "train", "rollout")
SANDBOXES = ("python", "search", "shop", "swe")
NAMES = (*PIPELINE, *(f"sandbox-{name}" for name in SANDBOXES))
_LARGE = "rollout"
"""Only built where it is named: vLLM brings a torch of its own, ten gigabytes and more."""
_LIST = "images.json"
CONTENTS_LABEL = "dev.espalier.contents.sha256"


class BuildError(Exception):
    """An image was not built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """How images are built, and where they go."""

    engine: Sequence[str]
    version: str
    out: Path
    base: str
    pip_conf: Path | None = None
    certificates: Path | None = None
    source: str | None = None

    def build(self, name: str) -> dict[str, object]:
        """Build one image, list its contents, label it.

        Raises:
            BuildError: a command failed; what it said went to standard error.
        """
        image = f"localhost/espalier-{name}:{self.version}"
        if name.startswith("sandbox-"):
            self._build_sandbox(name.removeprefix("sandbox-"))
        else:
            self._build_target(name, image)
        listed = self._list_contents(name, image)
        self._label(name, image, listed)
        (found,) = json.loads(self._said("image", "inspect", image))
        return {
            "image": image,
            "id": found["Id"],
            "digest": found.get("Digest"),
            "bytes": found["Size"],
            "contents": listed.name,
        }

    def _build_target(self, name: str, image: str) -> None:
        # no runtime and no new network: what a build runs is written in the Dockerfile
        flags = ["--isolation=chroot", "--network=host", f"--build-arg=PYTHON_IMAGE={self.base}"]
        if self.certificates is not None:
            flags.append(f"--volume={self.certificates}:/etc/ssl/certs:ro")
        if self.pip_conf is not None:
            flags.append(f"--secret=id=pip,src={self.pip_conf}")
        dockerfile = ROOT / "components" / "Dockerfile"
        ignored = f"--ignorefile={dockerfile}.dockerignore"
        self._run(
            "build", *flags, ignored, f"--file={dockerfile}", f"--target={name}",
            f"--tag={image}", str(ROOT),
        )  # fmt: skip

    def _build_sandbox(self, name: str) -> None:
        environment = {
            "PODMAN": shlex.join(self.engine),
            "VERSION": self.version,
            "BASE": self.base,
        }
        _run([str(ROOT / "sandbox-images" / "build.sh"), name], environment)

    def _list_contents(self, name: str, image: str) -> Path:
        listed = self.out / f"espalier-{name}.cdx.json"
        lister = [
            sys.executable, str(ROOT / "components" / "image_contents.py"),
            f"--name=espalier-{name}", f"--version={self.version}", f"--out={listed}",
        ]  # fmt: skip
        with self._container(image) as container:
            exporting = subprocess.Popen(
                [*self.engine, "export", container], stdout=subprocess.PIPE
            )
            listing = subprocess.run(lister, stdin=exporting.stdout, check=False)
            assert exporting.stdout is not None, "it is a pipe"
            exporting.stdout.close()  # an export that nobody reads ends
            if exporting.wait() != 0 or listing.returncode != 0:
                raise BuildError(f"the contents of {image} could not be listed")
        return listed

    @contextmanager
    def _container(self, image: str) -> Iterator[str]:
        """A container that is not started."""
        container = self._said("create", image).strip()
        try:
            yield container
        finally:
            self._said("rm", container)

    def _label(self, name: str, image: str, listed: Path) -> None:
        labels = {
            "org.opencontainers.image.title": f"espalier-{name}",
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.base.name": self.base,
            "org.opencontainers.image.revision": _revision(),
            CONTENTS_LABEL: hashlib.sha256(listed.read_bytes()).hexdigest(),
        }
        if self.source is not None:
            labels["org.opencontainers.image.source"] = self.source
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "Containerfile"
            file.write_text(f"FROM {image}\n", encoding="utf-8")
            given = [f"--label={key}={value}" for key, value in labels.items()]
            self._run(
                "build", "--isolation=chroot", "--pull=never", *given, f"--file={file}",
                f"--tag={image}", folder,
            )  # fmt: skip

    def _run(self, *arguments: str) -> None:
        _run([*self.engine, *arguments], {})

    def _said(self, *arguments: str) -> str:
        command = [*self.engine, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(command)}: {done.stderr.strip()}")
        return done.stdout


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run it with its output on standard error: standard output has the digests."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=sys.stderr, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(command)} ended with {done.returncode}")


def _revision() -> str:
    """The commit that is built, with a mark where files differ from it."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _base_of_dockerfile() -> str:
    text = (ROOT / "components" / "Dockerfile").read_text(encoding="utf-8")
    match = re.search(r"(?m)^ARG PYTHON_IMAGE=(\S+)$", text)
    assert match is not None, "the Dockerfile names its base"
    return match[1]


def _own_base(engine: str) -> str:
    script = ROOT / "sandbox-images" / "base.sh"
    environment = {**os.environ, "PODMAN": engine}
    made = subprocess.run([script], env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"error: {script} ended with {made.returncode}")
    return made.stdout.strip()


def _version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["version"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build, list what is in it, label")
    push = commands.add_parser("push", help="push what was built, and print its names by digest")
    for command in (build, push):
        command.add_argument("names", nargs="*", metavar="IMAGE", help=f"of {', '.join(NAMES)}")
        command.add_argument("--version", default=_version(), help="the tag; the project's version")
        command.add_argument("--engine", default="podman", help="command that builds")
        command.add_argument("--out", type=Path, default=ROOT / "dist" / "images")
    base = build.add_mutually_exclusive_group()
    base.add_argument(
        "--base", default=_base_of_dockerfile(), help="image with Python 3.11 and venv, by digest"
    )
    base.add_argument("--own-base", action="store_true", help="make one with debootstrap, as root")
    build.add_argument("--pip-conf", type=Path, help="names an index; not in the image")
    build.add_argument(
        "--certificates", type=Path, help="folder in the place of /etc/ssl/certs while building"
    )
    build.add_argument("--source", help="address of these sources, for a label")
    push.add_argument("--registry", required=True, help="such as registry.example/team")
    return parser


def _build(given: argparse.Namespace) -> None:
    builder = Builder(
        engine=shlex.split(given.engine),
        version=given.version,
        out=given.out,
        base=_own_base(given.engine) if given.own_base else given.base,
        pip_conf=given.pip_conf,
        certificates=given.certificates,
        source=given.source,
    )
    built = _built(given.out)
    for name in given.names or [name for name in NAMES if name != _LARGE]:
        built[name] = builder.build(name)
        _keep(given.out, built)
        print(f"{built[name]['image']} {built[name]['digest']}")  # noqa: T201


def _push(given: argparse.Namespace) -> None:
    built = _built(given.out)
    for name in given.names or built:
        if name not in built:
            raise BuildError(f"{name} is not in {given.out}: build it first")
        image = f"{given.registry}/espalier-{name}"
        pushed = _pushed(shlex.split(given.engine), built[name]["image"], image, given.version)
        built[name]["pushed"] = pushed
        _keep(given.out, built)
        print(pushed)  # noqa: T201


def _pushed(engine: Sequence[str], local: str, image: str, version: str) -> str:
    """Push it, and return its name by digest, as the registry has it."""
    with tempfile.NamedTemporaryFile() as digest:
        target = f"docker://{image}:{version}"
        _run([*engine, "push", f"--digestfile={digest.name}", local, target], {})
        return f"{image}@{Path(digest.name).read_text(encoding='utf-8').strip()}"


def _built(out: Path) -> dict[str, dict[str, object]]:
    path = out / _LIST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _keep(out: Path, built: Mapping[str, object]) -> None:
    (out / _LIST).write_text(json.dumps(built, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build images, or push what was built."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no image {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        (_build if given.command == "build" else _push)(given)
    except BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
