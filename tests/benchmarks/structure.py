"""How a package is cut into modules: sizes, imports, protocols, and names of several meanings.

A tree is a package's folder; every figure is read from its .py files, nothing is imported.

code lines            lines that hold code: neither docstring, import, comment nor blank. A string
                      that stands as a statement is a docstring, under attributes as well. A blank
                      line inside another string is blank.
with one importer     modules (no __init__.py) that exactly one other module of the tree imports, at
                      its top or inside a function. `from a import b` imports a.b where that is a
                      module, else a; taking a name from a package imports its __init__.py alone.
Protocols             classes with Protocol among their bases.
with one implementer  Protocols that one class of the tree implements: it derives from the Protocol,
                      or has each of its public members, own, inherited or set on self, by name and
                      methods with at least the Protocol's parameters, by name. No types are
                      compared, so small Protocols find classes that only look like them; functions
                      that fit a __call__, and classes outside the tree, are not found.
names defined twice   class names that more than one module defines at its top level.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = """examples:
  python -m tests.benchmarks.structure components/espalier
  python -m tests.benchmarks.structure components/espalier --git v1 --git v2
  python -m tests.benchmarks.structure components/espalier --compare ../prime-rl/src/prime_rl
"""
SMALL_LINES = 60
LISTED_NAMES = 100
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
"""Tokens that make no line a line of code."""


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    """Dotted, as it is imported."""
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def num_lines(self) -> int:
        """Lines of the file."""
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Structure:
    """The figures of one tree, with the names behind them."""

    files: int
    lines: int
    code_lines: int
    modules_with_one_importer: tuple[str, ...]
    small_modules_with_one_importer: tuple[str, ...]
    implementers: Mapping[str, tuple[str, ...]]
    """Protocol -> the classes that implement it."""
    names_defined_twice: Mapping[str, tuple[str, ...]]
    """Class name -> the modules that define it."""

    def protocols_with(self, implementers: int) -> list[str]:
        """Protocols that so many classes implement."""
        return [name for name, found in self.implementers.items() if len(found) == implementers]

    def figures(self) -> dict[str, int | float]:
        """What the table shows, by row."""
        return {
            "files": self.files,
            "lines": self.lines,
            "code lines": self.code_lines,
            "code share, %": round(100 * self.code_lines / max(1, self.lines), 1),
            "with one importer": len(self.modules_with_one_importer),
            f"  of {SMALL_LINES} lines or fewer": len(self.small_modules_with_one_importer),
            "Protocols": len(self.implementers),
            "  with one implementer": len(self.protocols_with(1)),
            "  with none found": len(self.protocols_with(0)),
            "names defined twice": len(self.names_defined_twice),
        }


def main() -> int:
    """Measure the trees and print the table, the names and the JSON."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            trees = {str(options.package): options.package} | {
                f"{options.package.name}@{commit}": _at_commit(commit, options.package, scratch)
                for commit in options.git
            }
            for path in options.compare:
                short = "/".join(path.resolve().parts[-2:])
                trees[str(path) if short in trees else short] = path
            measured = {label: measure(modules_of(path)) for label, path in trees.items()}
        except (ValueError, SyntaxError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    _print_table(measured)
    _print_names(measured)
    print(json.dumps({label: _plain(structure) for label, structure in measured.items()}))
    return 0


def modules_of(package: Path) -> list[Module]:
    """Parse every .py file under `package`, named by the packages above it.

    Raises:
        ValueError: no Python file is there.
        SyntaxError: a file is not Python of this version.
    """
    package = package.resolve()
    root = package.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    modules = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(Module(name, is_package, text, ast.parse(text, filename=str(path))))
    if not modules:
        raise ValueError(f"{package}: no Python file is there; name the folder of a package")
    return modules


def measure(modules: Sequence[Module]) -> Structure:
    """Count everything of one tree."""
    importers = importers_of(modules)
    single = [
        module for module in modules if not module.is_package and len(importers[module.name]) == 1
    ]
    return Structure(
        files=len(modules),
        lines=sum(module.num_lines for module in modules),
        code_lines=sum(len(code_line_numbers(module)) for module in modules),
        modules_with_one_importer=tuple(module.name for module in single),
        small_modules_with_one_importer=tuple(
            module.name for module in single if module.num_lines <= SMALL_LINES
        ),
        implementers=protocol_implementers(modules),
        names_defined_twice=names_defined_twice(modules),
    )


def code_line_numbers(module: Module) -> set[int]:
    """Numbers of the lines that hold code, by the rule in this module's docstring."""
    lines = module.text.splitlines()
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in _LAYOUT:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            assert isinstance(node, ast.stmt)
            numbers.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {number for number in numbers if number <= len(lines) and lines[number - 1].strip()}


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def importers_of(modules: Sequence[Module]) -> dict[str, set[str]]:
    """The modules that import each module, by name."""
    names = {module.name for module in modules}
    importers: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for imported in _imported(module, names):
            if imported != module.name:
                importers[imported].add(module.name)
    return importers


def _imported(module: Module, names: set[str]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute_name(module, node)
            for alias in node.names:
                if f"{source}.{alias.name}" in names:
                    yield f"{source}.{alias.name}"
                elif source in names:
                    yield source


def absolute_name(module: Module, node: ast.ImportFrom) -> str:
    """The module that an import names, with the dots of a relative one resolved."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    dropped = node.level - 1 if module.is_package else node.level
    return ".".join([*parts[: len(parts) - dropped], *((node.module,) if node.module else ())])


def protocol_implementers(modules: Sequence[Module]) -> dict[str, tuple[str, ...]]:
    """Protocols of the tree -> the classes that implement them, by the module's rule."""
    classes = [
        (f"{module.name}.{node.name}", node)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    by_name: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for _, node in classes:
        by_name[node.name].append(node)
    protocols = {name: node for name, node in classes if "Protocol" in _base_names(node)}
    others = [(name, node) for name, node in classes if name not in protocols]
    found = {}
    for name, protocol in protocols.items():
        wanted = {
            member: parameters
            for member, parameters in _members(protocol, by_name).items()
            if not member.startswith("_")
        }
        found[name] = tuple(
            other
            for other, node in others
            if protocol.name in ancestors(node, by_name)
            or (wanted and _has(_members(node, by_name), wanted))
        )
    return found


def _base_names(node: ast.ClassDef) -> list[str]:
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [
        base.attr if isinstance(base, ast.Attribute) else base.id
        for base in plain
        if isinstance(base, ast.Attribute | ast.Name)
    ]


def ancestors(node: ast.ClassDef, by_name: Mapping[str, list[ast.ClassDef]]) -> set[str]:
    """Names of the classes above; a name of several classes stands for all of them."""
    seen: set[str] = set()
    waiting = _base_names(node)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [base for above in by_name.get(name, ()) for base in _base_names(above)]
    return seen


Parameters = frozenset[str] | None
"""Names of a method's parameters, "**" where it takes any; None of a member that is a value."""


def _has(members: Mapping[str, Parameters], wanted: Mapping[str, Parameters]) -> bool:
    """Whether a class of these members can stand for a Protocol of the wanted ones, by name."""
    return all(
        name in members and _fits(members[name], parameters) for name, parameters in wanted.items()
    )


def _fits(offered: Parameters, wanted: Parameters) -> bool:
    if offered is None or wanted is None:
        return offered is wanted
    # a leading underscore marks a parameter that is given by position
    named = {each for each in wanted if each[0] not in "_*"}
    return "**" in offered or named <= offered


def _members(
    node: ast.ClassDef, by_name: Mapping[str, list[ast.ClassDef]]
) -> dict[str, Parameters]:
    above = [cls for name in ancestors(node, by_name) for cls in by_name.get(name, ())]
    return dict(member for cls in (*above, node) for member in _own_members(cls))


def _own_members(node: ast.ClassDef) -> Iterator[tuple[str, Parameters]]:
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr, None
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name, _parameters(statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, None
        elif isinstance(statement, ast.Assign):
            yield from ((name.id, None) for name in statement.targets if isinstance(name, ast.Name))


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
    decorators = {
        getattr(each, "id", getattr(each, "attr", "")) for each in function.decorator_list
    }
    if decorators & {"property", "cached_property"}:
        return None
    given = function.args
    names = {each.arg for each in (*given.args, *given.kwonlyargs)} - {"self", "cls"}
    return frozenset(names | ({"**"} if given.vararg or given.kwarg else set()))


def names_defined_twice(modules: Sequence[Module]) -> dict[str, tuple[str, ...]]:
    """Class names of more than one module, with those modules; the most frequent first."""
    defining: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for name in {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}:
            defining[name].append(module.name)
    counts = Counter({name: len(found) for name, found in defining.items() if len(found) > 1})
    return {
        name: tuple(defining[name])
        for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    }


def _at_commit(commit: str, package: Path, scratch: str) -> Path:
    """The package's folder as it was at `commit`, under `scratch`."""
    archived = subprocess.run(
        ["git", "archive", commit, "--", str(package)], capture_output=True, check=False
    )
    if archived.returncode:
        raise ValueError(f"git archive {commit} {package}: {archived.stderr.decode().strip()}")
    folder = Path(scratch, re.sub(r"\W", "_", commit))
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / package


def _print_table(measured: Mapping[str, Structure]) -> None:
    columns = [structure.figures() for structure in measured.values()]
    rows = [["", *measured]]
    rows += [[name, *(f"{column[name]:,}" for column in columns)] for name in columns[0]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *values in rows:
        aligned = map(str.rjust, values, widths[1:])
        print("  ".join([name.ljust(widths[0]), *aligned]).rstrip())


def _print_names(measured: Mapping[str, Structure]) -> None:
    for label, structure in measured.items():
        names = [f"{name} {len(found)}" for name, found in structure.names_defined_twice.items()]
        print(f"\n{label}: class names defined in more than one module")
        print("  " + (", ".join(names[:LISTED_NAMES]) or "none"))


def _plain(structure: Structure) -> dict[str, object]:
    return {
        **structure.figures(),
        "protocols_with_one_implementer": structure.protocols_with(1),
        "protocols_with_none_found": structure.protocols_with(0),
        "names_defined_twice": structure.names_defined_twice,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.structure",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("package", type=Path, help="folder of a package, such as src/mine")
    parser.add_argument(
        "--git", action="append", default=[], metavar="COMMIT", help="the same folder at a commit"
    )
    parser.add_argument(
        "--compare", type=Path, nargs="+", default=[], metavar="DIR", help="packages beside it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
