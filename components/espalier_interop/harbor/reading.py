"""Reads Harbor's task folders, and lists what each needs that a sandbox does not have.

    task.toml                  limits, image, variables
    instruction.md             the prompt
    environment/Dockerfile     where the files of environment/ go; nothing is built
    tests/test.sh              writes /logs/verifier/reward.txt or reward.json
    solution/solve.sh          the author's solution

Format: harbor 0.26 (harbor/models/task/config.py and paths.py). Other keys are ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from espalier.records import DataError
from espalier_interop.harbor.config import NeedKind
from espalier_interop.harbor.dockerfile import Recipe, read_dockerfile

_MAX_TEXT = 1 << 20
_MAX_BYTES = 48 << 20
"""Most bytes of the files that go into a sandbox."""
_TEMPLATE = re.compile(r"\$\{(\w+)(:-(.*))?\}")
_FETCHES = re.compile(
    r"(?:^|[\s;&|(])(apt-get|apt|curl|wget|uvx|uv|npm|npx|pip3?\s+install|git\s+clone|conda|go\s+get)"
    r"(?=\s|$)"
)
SYSTEM = frozenset(
    {
        "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "dev", "sys", "opt",
        "run", "var", "boot", "workspace",
    }
)  # fmt: skip
"""Folders of an image that tasks must not write to."""
MADE = ("tests", "solution", "logs")
"""Folders that Harbor creates in every environment."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Environment(_Part):
    docker_image: str | None = None
    os: str = "linux"
    gpus: float | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None


class _Verifier(_Part):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []


class _Agent(_Part):
    timeout_sec: float | None = None
    user: str | int | None = None


class _Solution(_Part):
    env: dict[str, str] = {}


class _Package(_Part):
    name: str = ""
    description: str = ""
    keywords: list[str] = []


class TaskToml(_Part):
    """The keys of a task.toml that are used."""

    schema_version: str = Field(
        default="1.0", validation_alias=AliasChoices("schema_version", "version")
    )
    task: _Package = _Package()
    metadata: dict[str, Any] = {}
    environment: _Environment = _Environment()
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    solution: _Solution = _Solution()
    steps: list[dict[str, Any]] = []


class Need(NamedTuple):
    """A requirement of a task that a sandbox does not meet by itself."""

    kind: NeedKind
    what: str


@dataclass(frozen=True)
class TaskFolder:
    """One task."""

    path: Path
    config: TaskToml
    instruction: str
    recipe: Recipe

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def workdir(self) -> str:
        """Folder in which commands run."""
        return self.config.environment.workdir or self.recipe.workdir

    @cached_property
    def solution(self) -> str | None:
        """The text of solution/solve.sh; None if there is none."""
        path = self.path / "solution" / "solve.sh"
        return _text(path) if path.is_file() else None

    def variables(self, of: Mapping[str, str]) -> dict[str, str]:
        """Return variables of the environment and those in `of`, with templates' defaults."""
        own = {**self.recipe.variables, **self.config.environment.env, **of}
        return {name: _TEMPLATE.sub(lambda m: m[3] or "", value) for name, value in own.items()}

    def environment_files(self) -> dict[str, bytes]:
        """Return absolute path -> content of the files that the Dockerfile copies.

        Raises:
            DataError: a file is not inside the folder, or the files are too large.
        """
        found: dict[str, bytes] = {}
        root = self.path / "environment"
        for copy in self.recipe.copies:
            for source in copy.sources:
                found |= dict(_placed(root, source, copy.target))
        return _within_bounds(self.path, found)

    def tree(self, folder: str) -> dict[str, bytes]:
        """Return absolute path -> content of `tests/` or `solution/`, copied unchanged."""
        return _within_bounds(
            self.path, dict(_files_below(self.path / folder, f"/{folder}", self.path / folder))
        )

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """Requirements that must be met before the task can be played."""
        found: list[Need] = []
        if steps := self.config.steps:
            found.append(Need("steps", f"{len(steps)} steps, each with a verifier of its own"))
        found += _needs_of_image(self)
        found += _needs_of_environment(self)
        found += _needs_of_paths(self)
        found += _needs_of_verifier(self)
        return tuple(found)


def read_folders(path: Path) -> list[TaskFolder]:
    """Return the task folders at or below a path, by name.

    Raises:
        DataError: there is no task folder, or a malformed one, which the message names.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no folder with Harbor's tasks")
    found = sorted(path.rglob("task.toml")) if not (path / "task.toml").is_file() else []
    folders = [path] if not found else [one.parent for one in found]
    if not found and not (path / "task.toml").is_file():
        raise DataError(f"{path}: no task.toml in it, nor in a folder below")
    return [read_folder(folder) for folder in folders]


def read_folder(folder: Path) -> TaskFolder:
    """Read one task folder.

    Raises:
        DataError: a file is missing or malformed; the message names it and the key.
    """
    where = folder / "task.toml"
    try:
        config = TaskToml.model_validate(tomllib.loads(_text(where)))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where}: not TOML ({error})") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{where}: {key}: {first['msg']}") from error
    instruction = ""
    if not config.steps:
        instruction = _text(folder / "instruction.md").strip()
        if not instruction:
            raise DataError(f"{folder / 'instruction.md'}: it is empty")
    dockerfile = folder / "environment" / "Dockerfile"
    recipe = read_dockerfile(_text(dockerfile)) if dockerfile.is_file() else Recipe()
    return TaskFolder(folder, config, instruction, recipe)


def _needs_of_image(folder: TaskFolder) -> Iterator[Need]:
    recipe, image = folder.recipe, folder.config.environment.docker_image
    if image:
        yield Need("image", image)
    elif recipe.base and not recipe.is_plain:
        yield Need("image", recipe.base)
    if recipe.runs:
        yield Need("run", f"{len(recipe.runs)} build commands, as {recipe.runs[0][:60]!r}")
    if any((folder.path / "environment").glob("*compose*.y*ml")):
        yield Need("compose", "several containers")


def _needs_of_environment(folder: TaskFolder) -> Iterator[Need]:
    config = folder.config
    environment = config.environment
    if environment.gpus or environment.tpu:
        yield Need("accelerator", f"{environment.gpus or 'TPU'} accelerators")
    if environment.os.lower() != "linux":
        yield Need("os", environment.os)
    if environment.mcp_servers:
        yield Need("servers", f"{len(environment.mcp_servers)} MCP servers")
    users = {str(one) for one in (config.agent.user, config.verifier.user) if one}
    users |= {folder.recipe.user} - {""}
    if users - {"root", "0"}:
        yield Need("user", f"the users {', '.join(sorted(users))}")
    asked = {**environment.env, **config.verifier.env}
    if unset := sorted({m[1] for v in asked.values() for m in _TEMPLATE.finditer(v) if not m[2]}):
        yield Need("variables", f"values of {', '.join(unset)}")


def _needs_of_verifier(folder: TaskFolder) -> Iterator[Need]:
    verifier = folder.config.verifier
    if verifier.environment_mode == "separate" or verifier.environment or verifier.collect:
        yield Need("verifier", "a verifier in an environment of its own")
    script = folder.path / "tests" / "test.sh"
    if not script.is_file():
        yield Need("tests", "a verifier other than tests/test.sh")
        return
    lines = _text(script).splitlines()
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    if fetched := _FETCHES.search(code):
        yield Need("network", f"tests/test.sh fetches, by {fetched[1]}")


def _needs_of_paths(folder: TaskFolder) -> Iterator[Need]:
    targets = [folder.workdir, *folder.recipe.folders]
    targets += [copy.target for copy in folder.recipe.copies]
    for target in targets:
        parts = PurePosixPath(target).parts
        if len(parts) < 2 or parts[1] in SYSTEM:
            yield Need("paths", f"files in {target}")
            return


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(_MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(text) > _MAX_TEXT:
        raise DataError(f"{path}: longer than {_MAX_TEXT} characters")
    return text


def _placed(root: Path, source: str, target: str) -> Iterator[tuple[str, bytes]]:
    """Yield where the files of one source of a COPY go."""
    pattern = source.lstrip("/").removeprefix("./").rstrip("/")
    if not pattern or pattern == ".":
        yield from _files_below(root, target.rstrip("/"), root)
        return
    if ".." in PurePosixPath(pattern).parts:
        raise DataError(f"{root}: COPY {source} leaves the folder")
    found = sorted(root.glob(pattern))
    if not found:
        raise DataError(f"{root}: COPY {source} names no file of it")
    for path in found:
        if path.is_dir():
            yield from _files_below(path, target.rstrip("/"), root)
        else:
            inside = target.endswith("/") or len(found) > 1
            place = f"{target.rstrip('/')}/{path.name}" if inside else target
            yield from _file(path, place, root)


def _files_below(folder: Path, target: str, root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() or path.is_symlink():
            yield from _file(path, f"{target}/{path.relative_to(folder).as_posix()}", root)


def _file(path: Path, place: str, root: Path) -> Iterator[tuple[str, bytes]]:
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"{path}: a link out of the task's folder")
    if path.is_file():
        yield place, path.read_bytes()


def _within_bounds(path: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    total = sum(map(len, files.values()))
    if total > _MAX_BYTES:
        raise DataError(
            f"{path}: its files have {total} bytes; {_MAX_BYTES} go into a sandbox. Put them into "
            "its image"
        )
    return files
