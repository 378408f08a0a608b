"""Finds the places of a Python source where one operator, branch or constant can be changed.

Mutated are comparisons, arithmetic and boolean operators, the conditions of branches (negated) and
integers inside function bodies (plus one). Left alone are annotations, docstrings and other texts,
what an error or a log line says, `if TYPE_CHECKING`, and the constants of modules and classes:
those are settings rather than logic.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SPEAKERS = {"print", "debug", "info", "warning", "error", "exception", "warn", "echo"}
"""Calls whose arguments are text for people."""


Node = ast.expr | ast.stmt


@dataclass(frozen=True)
class Mutant:
    """One change of one source file."""

    path: str
    """Of the file, relative to the folder of the packages."""
    line: int
    kind: str
    """comparison, operator, boolean, branch or constant."""
    index: int
    """Which of all mutants of the file."""

    @property
    def name(self) -> str:
        """The same in every run on the same source."""
        return f"{self.path}:{self.line}:{self.kind}:{self.index}"


def find_mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file."""
    changes = enumerate(_changes(ast.parse(source)))
    return [Mutant(path, node.lineno, kind, index) for index, (node, _, kind) in changes]


def mutate(source: str, mutant: Mutant) -> str:
    """The source with the one change; everything outside the changed expression stays as it is."""
    tree = ast.parse(source)
    node, changed, _ = next(islice(_changes(tree), mutant.index, None))
    wanted = ast.dump(_with(tree, node, changed))
    text = ast.unparse(changed)
    for replacement in (text, f"({text})"):  # brackets where the line would be read otherwise
        result = _replaced(source, node, replacement)
        if _dumped(result) == wanted:
            return result
    raise ValueError(f"{mutant.name}: the change cannot be written into the line")


def changed_lines(before: str, after: str) -> str:
    """The first line that differs, as it was and as it is."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    old, new = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return f"- {old.strip()}\n+ {new.strip()}"


def _changes(tree: ast.Module) -> Iterator[tuple[Node, Node, str]]:
    """A node, what takes its place, and the kind of the change."""
    for node, in_function in _logic(tree, in_function=False):
        for changed in _operator_changes(node):
            yield node, *changed
        if isinstance(node, ast.If | ast.While | ast.IfExp) and _is_to_be_negated(node.test):
            yield node.test, ast.UnaryOp(ast.Not(), node.test), "branch"
        if in_function and isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, ast.Constant(node.value + 1), "constant"


def _logic(node: ast.AST, *, in_function: bool) -> Iterator[tuple[Node, bool]]:
    """All expressions and statements that decide or compute something."""
    for child in _kept_children(node):
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.expr | ast.stmt):
            yield child, inside
        yield from _logic(child, in_function=inside)


def _kept_children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Raise | ast.JoinedStr) or _is_speaking(node):
        return []
    if isinstance(node, ast.keyword) and node.arg == "indent":  # of JSON
        return []
    dropped: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        dropped = [node.returns, *node.decorator_list]
    elif isinstance(node, ast.arg | ast.AnnAssign):
        dropped = [node.annotation]
    elif isinstance(node, ast.If) and _is_typing(node.test):
        return list(node.orelse)
    elif isinstance(node, ast.Assert):
        return []
    return [child for child in ast.iter_child_nodes(node) if child not in dropped]


def _is_speaking(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in SPEAKERS


def _operator_changes(node: Node) -> Iterator[tuple[Node, str]]:
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield (
                        _with_fields(node, ops=[*ops[:place], other(), *ops[place + 1 :]]),
                        "comparison",
                    )
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            if type(op) in OPERATORS and not _is_of_types(node):
                yield _with_fields(node, op=OPERATORS[type(op)]()), "operator"
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            yield operand, "operator"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand, "boolean"
        case ast.BoolOp(op=op):
            other = ast.Or if isinstance(op, ast.And) else ast.And
            yield _with_fields(node, op=other()), "boolean"


def _with_fields(node: Node, **fields: object) -> Node:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_to_be_negated(test: ast.expr) -> bool:
    """Whether a condition is turned round by no change of its own, as `not` and `==` are."""
    return not isinstance(test, ast.UnaryOp | ast.Compare | ast.Constant) and not _is_typing(test)


def _is_typing(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in ast.unparse(test)


def _is_of_types(node: ast.AST) -> bool:
    """`str | None` and its like: a type, no number."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    types = {"int", "float", "str", "bool", "bytes", "dict", "list", "tuple", "set", "None"}
    words = [ast.unparse(side).split("[")[0].split(".")[-1] for side in (node.left, node.right)]
    return any(word in types or (word[:1].isupper() and not word.isupper()) for word in words)


def _with(tree: ast.Module, node: Node, changed: Node) -> ast.Module:
    """A copy of the tree in which `changed` stands in the place of `node`."""

    class Replacing(ast.NodeTransformer):
        def visit(self, visited: ast.AST) -> ast.AST:
            return changed if visited is node else self.generic_visit(visited)

    return Replacing().visit(copy.deepcopy(tree, {id(node): node}))


def _replaced(source: str, node: Node, text: str) -> str:
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    assert node.end_lineno is not None
    first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
    changed = first[: node.col_offset] + text.encode() + last[node.end_col_offset :]
    return b"".join([*lines[: node.lineno - 1], changed, *lines[node.end_lineno :]]).decode()


def _dumped(source: str) -> str | None:
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
