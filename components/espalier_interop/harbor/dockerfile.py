"""Reads a task's Dockerfile: files to copy, variables, and requirements that are not met here.

Nothing is built. `FROM`, `WORKDIR`, `COPY`, `ADD` of files, `ENV`, `ARG`, `LABEL`, `EXPOSE`, `CMD`,
`ENTRYPOINT` and `SHELL` are read. A `RUN` that only creates folders is followed; any other is a
requirement.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_PLAIN = re.compile(r"(?:docker\.io/|library/|mirror\.gcr\.io/)*(python|ubuntu|debian):[\w.-]+")
"""Images that have a shell, the usual tools and Python, like every sandbox."""
_INERT = frozenset(
    {
        "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "SHELL", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK",
        "ONBUILD", "VOLUME",
    }
)  # fmt: skip
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_MAKES_FOLDERS = re.compile(r"mkdir(?:\s+-p)?(?:\s+/?[\w./-]+)+")


@dataclass(frozen=True, slots=True)
class Copy:
    """Patterns of files in `environment/`, and where they are copied to."""

    sources: tuple[str, ...]
    target: str


@dataclass(slots=True)
class Recipe:
    """The part of a Dockerfile that is followed."""

    base: str = ""
    workdir: str = "/app"
    copies: list[Copy] = field(default_factory=list[Copy])
    folders: list[str] = field(default_factory=list[str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    runs: list[str] = field(default_factory=list[str])
    """Commands that would have to run to build the image."""
    user: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether its base image has nothing that a sandbox lacks."""
        return _PLAIN.fullmatch(self.base) is not None


def read_dockerfile(text: str) -> Recipe:
    """Parse a Dockerfile; instructions not understood count as commands to run."""
    recipe, arguments = Recipe(), dict[str, str]()
    for word, rest in _instructions(text):
        names = {**arguments, **recipe.variables}
        match word:
            case "FROM":
                if recipe.base:
                    recipe.runs.append(f"FROM {rest[:80]} (a further stage)")
                parts = [part for part in rest.split() if not part.startswith("--")]
                recipe.base = _filled(parts[0], names) if parts else ""
            case "WORKDIR":
                recipe.workdir = _absolute(recipe.workdir, _filled(rest, names))
                recipe.folders.append(recipe.workdir)
            case "ENV":
                recipe.variables |= _assigned(rest, names)
            case "ARG":
                name, _, default = rest.partition("=")
                arguments[name.strip()] = _filled(default.strip("\"' "), names)
            case "USER":
                recipe.user = rest
            case _ if word not in _INERT:
                _do(recipe, word, rest, names)
            case _:
                pass
    return recipe


def _do(recipe: Recipe, word: str, rest: str, names: Mapping[str, str]) -> None:
    """Record copies of files and new folders; everything else is a command to run."""
    if word in ("COPY", "ADD") and (copied := _copied(rest, recipe.workdir, names)) is not None:
        recipe.copies.append(copied)
    elif word == "RUN" and _MAKES_FOLDERS.fullmatch(rest):
        made = rest.removeprefix("mkdir").removeprefix(" -p").split()
        recipe.folders += [_absolute(recipe.workdir, folder) for folder in made]
    else:
        recipe.runs.append(rest if word == "RUN" else f"{word} {rest[:80]}")


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield instructions with arguments, continued lines joined and heredocs skipped."""
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.strip()
        if not whole or whole.startswith("#"):
            continue
        while whole.endswith("\\"):
            following = next(lines, "").strip()
            whole = whole[:-1] + ("" if following.startswith("#") else f" {following}")
            if following.startswith("#"):
                whole += "\\"
        if (found := _HEREDOC.search(whole)) is not None:
            for inner in lines:
                if inner.strip() == found[1]:
                    break
        word, _, rest = whole.partition(" ")
        yield word.upper(), " ".join(rest.split())


def _assigned(rest: str, names: Mapping[str, str]) -> dict[str, str]:
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        return {words[0]: _filled(" ".join(words[1:]), names)}
    pairs = (word.partition("=") for word in words if "=" in word)
    return {name: _filled(value, names) for name, _, value in pairs}


def _copied(rest: str, workdir: str, names: Mapping[str, str]) -> Copy | None:
    """Return a copy of local files; None for another stage, the network, or a heredoc."""
    try:
        words = shlex.split(rest.replace("[", " ").replace("]", " ").replace(",", " "))
    except ValueError:
        return None
    flags = [word for word in words if word.startswith("--")]
    paths = [_filled(word, names) for word in words if not word.startswith("--")]
    if len(paths) < 2 or any(flag.startswith("--from") for flag in flags):
        return None
    if any("://" in path or path.startswith("<<") or path.startswith("git@") for path in paths):
        return None
    *sources, target = paths
    folder = target.endswith("/") or len(sources) > 1 or target in (".", "..")
    return Copy(tuple(sources), _absolute(workdir, target) + ("/" if folder else ""))


def _filled(text: str, names: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda m: names.get(m[1] or m[3], m[2] or ""), text)


def _absolute(workdir: str, path: str) -> str:
    """Return an absolute path of the image, without `.` and `..`."""
    parts: list[str] = []
    for part in PurePosixPath(workdir, path.strip("\"' ")).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return "/" + "/".join(parts)
