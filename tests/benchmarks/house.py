"""How large the house is: lines by room, what each room reaches, and the shape of its functions.

Counts this checkout, one of its commits (--commit), or another project's tree (--tree, or --commit
of --repository), all by the same rules. Nothing is imported for it; --keys and --process start
processes that import the library which is counted.

package       a folder below components/ with Python files, or what --package names; its modules are
              found wherever the tree has a folder of that name that no other package holds.
room          a folder directly in a package; modules beside the folders are the room "(top)".
lines         of .py files: code, docstring, comment, blank, in all. A line of code may end with a
              comment; imports are code; a blank line inside a docstring is docstring.
reach         the modules that are loaded when all imports are followed, those inside functions
              included, and the packages above each module, whose __init__.py runs first. What only
              `if TYPE_CHECKING` imports, and names that are loaded by a string, are left out.
body          lines of a function from its first statement, docstring left out, to its last.
helpers       private functions and methods, outside of functions, that one place of the tree uses.
              Uses are told by name: a method's `self.name` belongs to its own class where that
              defines it, and what overrides a method, or is overridden, is no helper.
keys          of the profile (--keys): dotted paths of what is no section, those of all families and
              all members of unions; shipped are those that a TOML file of pipelines/profiles sets.
process       (--process) modules of the package that sys.modules has after the training stage and
              the default family are imported.
minutes       of the tests: the sum over pytest's last lines in each --test-log.

--keep NAME keeps the figures in tests/benchmarks/baselines/house.json; CONTRIBUTING.md prints its
tables from there (`python -m docs.build --write`). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.structure import Module, absolute_name, ancestors, modules_of

EXAMPLES = """examples:
  python -m tests.benchmarks.house
  python -m tests.benchmarks.house --commit d8c33590 --keys --keep before
  python -m tests.benchmarks.house --repository ../trl --commit HEAD --package trl \\
    --entry trl.trainer.grpo_trainer --keep TRL
  python -m tests.benchmarks.house --tree ../verifiers --package verifiers.v1
"""
ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "baselines" / "house.json"
ENTRIES = ("espalier.stages.continue_pretraining", "espalier.stages.train")
"""Modules whose reach is told beside that of the rooms."""
TOP = "(top)"
KINDS = ("code", "docstring", "comment", "blank")
PROCESSES = Path(__file__).with_name("house_processes.py")
"""Run by the interpreter with the counted library on its path."""
_NO_LINE_OF_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Tree:
    """The parsed modules of a project, by dotted name, and those of its tests."""

    folder: Path
    modules: Mapping[str, Module]
    packages: Sequence[str]
    """Dotted names of the counted packages."""

    def room_of(self, module: str) -> tuple[str, str]:
        """Package and room of a module."""
        package = max((p for p in self.packages if f"{module}.".startswith(f"{p}.")), key=len)
        inside = module[len(package) + 1 :].split(".") if module != package else []
        is_folder = len(inside) > 1 or (inside and self.modules[module].is_package)
        return package, inside[0] if is_folder else TOP


def main() -> int:
    """Count one tree and print tables and JSON."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder, commit = _folder_of(options, Path(scratch))
            tree = read_tree(folder, options.package)
            entries = options.entry or [name for name in ENTRIES if name in tree.modules]
            figures: dict[str, Any] = {
                "commit": commit,
                "packages": list(tree.packages),
                **counted(tree, entries),
                "tests": tests_of(folder, options.test_log),
            }
            for asked in ("keys", "process"):
                if getattr(options, asked):
                    figures |= _from_process(asked, tree)
        except (ValueError, SyntaxError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    _print_tables(figures)
    if options.keep:
        _keep(options.keep, figures)
    headline = {k: v for k, v in figures.items() if k != "rooms"}
    print(json.dumps(headline))
    return 0


def read_tree(folder: Path, packages: Sequence[str]) -> Tree:
    """Parse the packages of a project.

    Raises:
        ValueError: a package is not there.
        SyntaxError: a file is not Python of this version.
    """
    names = packages or sorted(
        path.name
        for path in (folder / "components").glob("*/")
        if any(path.rglob("*.py")) and not path.name.endswith(".egg-info")
    )
    if not names:
        raise ValueError(f"{folder} has no components/: name a package with --package")
    modules: dict[str, Module] = {}
    for name in names:
        parts = Path(*name.split("."))
        roots = [
            path
            for path in sorted(folder.rglob(str(parts)))
            if path.is_dir()
            and any(path.rglob("*.py"))
            and not (path.parents[len(parts.parts) - 1] / "__init__.py").exists()
        ]
        if not roots:
            raise ValueError(f"{folder}: no folder of the package {name} is there")
        for root in roots:
            modules |= {module.name: module for module in modules_of(root)}
    return Tree(folder, modules, names)


def counted(tree: Tree, entries: Sequence[str]) -> dict[str, Any]:
    """Lines, reach and functions of the packages, room by room.

    Raises:
        ValueError: an entry is no module of the packages.
    """
    if unknown := [name for name in entries if name not in tree.modules]:
        raise ValueError(f"no module {', '.join(unknown)} is in {', '.join(tree.packages)}")
    lines = {name: Counter(line_kinds(module)) for name, module in tree.modules.items()}
    imports = {name: set(imported(module, tree.modules)) for name, module in tree.modules.items()}
    rooms: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in tree.modules:
        rooms[tree.room_of(name)].append(name)

    def sums(names: Sequence[str]) -> dict[str, int]:
        total = sum((lines[name] for name in names), Counter[str]())
        return {"modules": len(names), "lines": total.total(), **{k: total[k] for k in KINDS}}

    def reach(start: Sequence[str]) -> dict[str, int]:
        found = reached(start, imports)
        return {"modules": len(found), "code": sum(lines[name]["code"] for name in found)}

    bodies = [
        body_lines(node)
        for module in tree.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, _Function)
    ]
    return {
        "total": sums(list(tree.modules)),
        "num_rooms": {
            package: sum(p == package and room != TOP for p, room in rooms)
            for package in tree.packages
        },
        "functions": len(bodies),
        "mean_body": round(sum(bodies) / max(1, len(bodies)), 1),
        "single_caller_helpers": len(single_use_helpers(tree)),
        "reach": {entry: reach([entry]) for entry in entries},
        "rooms": [
            {"package": package, "room": room, **sums(names), "reach": reach(names)}
            for (package, room), names in sorted(rooms.items())
        ],
    }


def line_kinds(module: Module) -> Iterator[str]:
    """The kind of each line, in order."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_LINE_OF_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    docstrings: set[int] = set()
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, text in enumerate(module.text.splitlines(), 1):
        if number in docstrings:
            yield "docstring"
        elif not text.strip():
            yield "blank"
        elif number in comments and number not in code:
            yield "comment"
        else:
            yield "code"


def imported(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """Names of the modules that a module imports at run time."""
    for node in _at_run_time(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = absolute_name(module, node)
            names = [source, *(f"{source}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name in modules)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from _at_run_time(other)
        else:
            yield child
            yield from _at_run_time(child)


def reached(start: Sequence[str], imports: Mapping[str, set[str]]) -> set[str]:
    """`start` and all that it loads, the packages above each module included."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        above = name.rpartition(".")[0]
        waiting += [*imports[name], *([above] if above in imports else [])]
    return found


def body_lines(function: _Function) -> int:
    """Lines of a function's body, docstring left out."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@dataclass(frozen=True)
class Helper:
    """A private function or method, and the class that it belongs to."""

    module: str
    owner: str
    """Name of the class; empty for a function."""
    function: _Function

    @property
    def name(self) -> str:
        """As it is written where it is used."""
        return self.function.name


def single_use_helpers(tree: Tree) -> list[Helper]:
    """Private functions and methods that exactly one place uses, by the module's rule."""
    helpers = [
        helper
        for name, module in tree.modules.items()
        for helper in _private_functions(name, module.tree)
    ]
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for module in tree.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(node)
    owners: dict[str, set[str]] = defaultdict(set)
    defining: dict[str, set[str]] = defaultdict(set)
    for helper in helpers:
        owners[helper.name].add(helper.owner)
        defining[helper.name].add(helper.module)
    uses = _uses(tree, set(owners))
    above = {name: _ancestors_of(name, classes) for name in {helper.owner for helper in helpers}}
    own = {name: _own_names(name, classes) for name in classes}

    def is_polymorphic(helper: Helper) -> bool:
        others = owners[helper.name] - {"", helper.owner}
        return any(helper.owner in above[o] or o in above[helper.owner] for o in others)

    def num_uses(helper: Helper) -> int:
        return sum(
            use.is_attribute == bool(helper.owner)
            and (use.owner in ("", helper.owner) or helper.name not in own[use.owner])
            for use in uses[helper.name]
            if use.module == helper.module or use.module not in defining[helper.name]
        )

    return [h for h in helpers if num_uses(h) == 1 and not (h.owner and is_polymorphic(h))]


@dataclass(frozen=True)
class _Use:
    module: str
    owner: str
    """The class around it, where it is an attribute of self or cls; else empty."""
    is_attribute: bool = False


def _private_functions(module: str, tree: ast.Module) -> Iterator[Helper]:
    for owner in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))):
        for node in owner.body:
            if (
                isinstance(node, _Function)
                and node.name.startswith("_")
                and not node.name.startswith("__")
            ):
                yield Helper(module, "" if isinstance(owner, ast.Module) else owner.name, node)


def _uses(tree: Tree, names: set[str]) -> dict[str, list[_Use]]:
    found: dict[str, list[_Use]] = defaultdict(list)

    def visit(node: ast.AST, module: str, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            within = child.name if isinstance(child, ast.ClassDef) else owner
            if isinstance(child, ast.Name) and child.id in names:
                found[child.id].append(_Use(module, ""))
            elif isinstance(child, ast.Attribute) and child.attr in names:
                of_self = isinstance(child.value, ast.Name) and child.value.id in ("self", "cls")
                found[child.attr].append(_Use(module, owner if of_self else "", is_attribute=True))
            visit(child, module, within)

    for name, module in tree.modules.items():
        visit(module.tree, name, "")
    return found


def _ancestors_of(name: str, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    return {above for node in classes.get(name, ()) for above in ancestors(node, classes)}


def _own_names(name: str, classes: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    return {
        each.name
        for node in classes.get(name, ())
        for each in node.body
        if isinstance(each, _Function)
    }


def tests_of(folder: Path, logs: Sequence[Path]) -> dict[str, Any]:
    """Files and lines of tests/, and the minutes of the runs whose output is given."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((folder / "tests").rglob("*.py"))]
    seconds = [
        float(found)
        for log in logs
        for found in re.findall(r" in (\d+(?:\.\d+)?)s\b", log.read_text(encoding="utf-8"))
    ]
    return {
        "files": len(texts),
        "lines": sum(len(text.splitlines()) for text in texts),
        "minutes": round(sum(seconds) / 60, 1) if seconds else None,
    }


def _from_process(asked: str, tree: Tree) -> dict[str, Any]:
    """What a process that imports the counted library prints as its last line."""
    path = os.pathsep.join([str(tree.folder / "components"), str(tree.folder)])
    with tempfile.TemporaryDirectory() as work:
        ran = subprocess.run(
            [sys.executable, str(PROCESSES), asked, str(tree.folder)],
            cwd=work,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if ran.returncode:
        raise ValueError(f"--{asked}: the process ended with {ran.returncode}; its lines are above")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    if "loaded" in found:
        loaded = [name for name in found.pop("loaded") if name in tree.modules]
        code = sum(Counter(line_kinds(tree.modules[name]))["code"] for name in loaded)
        found["process"] = {"modules": len(loaded), "code": code}
    return found


def _folder_of(options: argparse.Namespace, scratch: Path) -> tuple[Path, str]:
    """The folder to count and its commit, if it is one."""
    if options.commit is None:
        return options.tree, ""
    git = ["git", "-C", str(options.repository)]
    named = subprocess.run(
        [*git, "rev-parse", "--short=10", f"{options.commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if named.returncode:
        raise ValueError(f"{options.repository}: {named.stderr.strip()}")
    archived = subprocess.run(
        [*git, "archive", options.commit], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archived)) as files:
        files.extractall(scratch, filter="data")
    return scratch, named.stdout.strip()


def _keep(name: str, figures: Mapping[str, Any]) -> None:
    """Write the figures of one tree beside those of the others; what was not asked for stays."""
    content: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))
    earlier = content["trees"].get(name, {})
    same = earlier.get("commit") == figures["commit"]
    tests = {k: v for k, v in figures["tests"].items() if v is not None}
    content["trees"][name] = {
        **(earlier if same else {}),
        **figures,
        "tests": {**(earlier.get("tests", {}) if same else {}), **tests},
    }
    content["commit"] = content["trees"]["after"]["commit"][:8]
    KEPT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _print_tables(figures: Mapping[str, Any]) -> None:
    head = ("package", "room", "modules", "lines", *KINDS, "reach: modules", "code")
    rows = [
        (
            room["package"], room["room"],
            *(f"{room[column]:,}" for column in ("modules", "lines", *KINDS)),
            *(f"{value:,}" for value in room["reach"].values()),
        )
        for room in figures["rooms"]
    ]  # fmt: skip
    total = figures["total"]
    rows.append(("all", "", *(f"{total[c]:,}" for c in ("modules", "lines", *KINDS)), "", ""))
    _print_aligned([head, *rows], num_names=2)
    print()
    plain = [("functions", "functions"), ("mean body, lines", "mean_body"),
             ("private helpers used once", "single_caller_helpers")]  # fmt: skip
    _print_aligned([(label, f"{figures[key]:,}") for label, key in plain], num_names=1)
    for entry, found in figures["reach"].items():
        print(f"{entry} reaches {found['modules']:,} modules, {found['code']:,} lines of code")
    if "process" in figures:
        found = figures["process"]
        print(f"a training process holds {found['modules']:,} of them, {found['code']:,} of code")
    print()


def _print_aligned(rows: Sequence[Sequence[str]], *, num_names: int) -> None:
    """Print a table whose first columns are names and the others figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        align: Callable[[int], Callable[[str, int], str]]
        align = lambda at: str.ljust if at < num_names else str.rjust  # noqa: E731
        print("  ".join(align(at)(cell, widths[at]) for at, cell in enumerate(row)).rstrip())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.house",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--tree", type=Path, default=ROOT, metavar="DIR", help="this by default")
    where.add_argument("--commit", metavar="REV", help="the tree at a commit of --repository")
    parser.add_argument(
        "--repository",
        type=Path,
        default=ROOT,
        metavar="DIR",
        help="this by default; or a bare one",
    )
    parser.add_argument(
        "--package", action="append", default=[], metavar="NAME", help="such as verifiers.v1"
    )
    parser.add_argument(
        "--entry", action="append", default=[], metavar="MODULE", help="whose reach is told as well"
    )
    parser.add_argument("--keys", action="store_true", help="count the keys of the profile")
    parser.add_argument("--process", action="store_true", help="what a training process imports")
    parser.add_argument(
        "--test-log", type=Path, action="append", default=[], metavar="FILE",
        help="output of pytest, for the tests' minutes",
    )  # fmt: skip
    parser.add_argument("--keep", metavar="NAME", help="keep the figures in baselines/house.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
