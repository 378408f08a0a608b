"""Faults: a function's source with one line changed by an operator on its syntax tree.

    total += fee    ->    total -= fee      operator
    if n > 3:       ->    if n < 3:         comparison
    total = max(total, fee)  ->  total = min(total, fee)      call

Sources are in the form of `ast.unparse`, so that a change of the tree changes a single line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from espalier_environments.software_repair.config import MutationKind


class Mutation(NamedTuple):
    """One changed line of a function."""

    kind: MutationKind
    line: int
    """Index of the line in the function, from 0 at its `def`."""
    right: str
    wrong: str
    """The line before (`right`) and after the mutation, with its indentation."""


_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
}
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.Gt, ast.LtE),
    ast.Gt: (ast.Lt, ast.GtE),
}
_CALLS = {
    "min": "max", "max": "min", "sum": "max", "len": "sum", "upper": "lower", "lower": "upper",
    "sorted": "list", "abs": "int",
}  # fmt: skip


def mutations(source: str, kinds: Sequence[MutationKind]) -> list[Mutation]:
    """Return every change of one line of a function by these kinds of operators.

    Args:
        source: source of one function, in the form of `ast.unparse`.
        kinds: the kinds of mutations.
    """
    tree = ast.parse(source)
    before = source.splitlines()
    found: dict[tuple[int, str], Mutation] = {}
    for kind in kinds:
        for after in _changed(tree, _MAKERS[kind]):
            lines = [
                n for n, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) > 1
            ]
            if len(before) != len(after) or len(lines) != 1:
                continue
            (line,) = lines
            mutation = Mutation(kind, line, before[line], after[line])
            found.setdefault((line, mutation.wrong), mutation)
    return list(found.values())


_Make = Callable[[ast.AST, "list[str]"], Iterator[Callable[[ast.AST], None]]]
"""Maps a node and the function's parameters to the possible changes of that node."""


def _changed(tree: ast.Module, make: _Make) -> Iterator[list[str]]:
    """Yield the lines after each change; `tree` is changed meanwhile, and restored afterwards."""
    function = cast("ast.FunctionDef", tree.body[0])
    parameters = [argument.arg for argument in function.args.args]
    for node in list(ast.walk(tree)):
        before = dict(vars(node))
        for change in list(make(node, parameters)):
            change(node)
            yield ast.unparse(tree).splitlines()
            vars(node).update(before)


def _set(name: str, value: object) -> Callable[[ast.AST], None]:
    return lambda node: setattr(node, name, value)


def _operator(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for other in _OPERATORS.get(type(node.op), ()):
            yield _set("op", other())


def _comparison(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Compare):
        for other in _COMPARISONS.get(type(node.ops[0]), ()):
            yield _set("ops", [other()])


def _constants(node: ast.AST, offsets: Sequence[int]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for offset in offsets:
            if node.value + offset > 0 or node.value == 0:
                yield _set("value", abs(node.value + offset))


def _off_by_one(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    return _constants(node, (1, -1))


def _constant(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    return _constants(node, (3, 5))


def _call(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and (other := _CALLS.get(node.func.id)):
            yield _set("func", ast.Name(other))
        elif isinstance(node.func, ast.Attribute) and (other := _CALLS.get(node.func.attr)):
            yield _set("func", ast.Attribute(node.func.value, other))


def _name(node: ast.AST, parameters: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Name) and node.id in parameters:
        for other in parameters:
            if other != node.id:
                yield _set("id", other)


def _swapped(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second, *rest = node.args
        yield _set("args", [second, first, *rest])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left, right = node.left, node.right

        def swap(copied: ast.AST) -> None:
            _set("left", right)(copied)
            _set("right", left)(copied)

        yield swap


def _slice(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.Slice) and node.step is None:
        lower, upper = node.lower, node.upper

        def turn(copied: ast.AST) -> None:
            _set("lower", upper)(copied)
            _set("upper", lower)(copied)

        yield turn


def _branch(node: ast.AST, _: list[str]) -> Iterator[Callable[[ast.AST], None]]:
    if isinstance(node, ast.If):
        yield _set("body", [ast.Pass()])


_MAKERS: dict[MutationKind, _Make] = {
    "operator": _operator,
    "comparison": _comparison,
    "off_by_one": _off_by_one,
    "constant": _constant,
    "call": _call,
    "name": _name,
    "swapped": _swapped,
    "slice": _slice,
    "branch": _branch,
}
