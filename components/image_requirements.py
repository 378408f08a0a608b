"""Writes what each layer of an image installs; run by components/Dockerfile, without espalier.

    torch.txt         pins of torch and of all that it may need: gigabytes that seldom change
    libraries.txt     what espalier and the extras of the image depend on by themselves
    constraints.txt   the pins of those, without tools of development

A layer is built anew when the file that it copies has changed: another linter, or another version
of a small library, must not move torch again.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

TORCH = re.compile(
    r"(torch|filelock|fsspec|jinja2|markupsafe|mpmath|networkx|setuptools|sympy|typing-extensions)"
)
"""torch with its dependencies, from its own metadata; setuptools is one of them."""
CUDA = re.compile(r"(nvidia-.*|cuda-.*|triton)")
"""What torch needs besides in its build for GPUs, the one that PyPI has for Linux."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def layers(
    pyproject: str, constraints: str, extras: Sequence[str], packages: Sequence[str]
) -> dict[str, str]:
    """Return the contents of the three files, by name.

    Args:
        pyproject: text of the core's pyproject.toml.
        constraints: text of constraints.txt.
        extras: of the core or of a package beside it that the image needs; no two share a name.
        packages: texts of the pyproject.toml of each package beside the core.
    """
    project, *beside = (tomllib.loads(text)["project"] for text in (pyproject, *packages))
    optional = dict(project["optional-dependencies"])
    for package in beside:
        optional |= package.get("optional-dependencies", {})
    wanted = [*project["dependencies"], *(line for name in extras for line in optional[name])]
    needed = (line for package in beside for line in package["dependencies"])
    wanted += [line for line in needed if _name(line) != project["name"] and line not in wanted]
    tools = {_name(line) for line in optional["dev"]} - {_name(line) for line in wanted}
    pins = [line for line in constraints.splitlines() if _NAME.match(line)]
    torch = [line for line in pins if _is_torchs(line)]
    rest = [line for line in pins if _name(line) not in tools and line not in torch]
    libraries = [line for line in wanted if _name(line) != "torch"]
    return {
        "torch.txt": _text(torch),
        "libraries.txt": _text(libraries),
        "constraints.txt": _text([*torch, *rest]),
    }


def _is_torchs(line: str) -> bool:
    name = _name(line)
    return bool(TORCH.fullmatch(name) or CUDA.fullmatch(name))


def _name(line: str) -> str:
    """Return the name in a requirement, in the one spelling of an index."""
    match = _NAME.match(line)
    assert match is not None, f"{line!r} is no requirement"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files of one image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--source",
        type=Path,
        required=True,
        help="has pyproject.toml, constraints.txt and packages/*.toml of those beside the core",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--extra", action="append", default=[])
    given = parser.parse_args(arguments)
    pyproject, constraints = (
        (given.source / name).read_text() for name in ("pyproject.toml", "constraints.txt")
    )
    packages = [path.read_text() for path in sorted((given.source / "packages").glob("*.toml"))]
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in layers(pyproject, constraints, given.extra, packages).items():
        (given.out / name).write_text(text)


if __name__ == "__main__":
    main()
