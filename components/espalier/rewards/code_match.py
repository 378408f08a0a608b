"""The share of a reference program's syntax and data flow that a program has, 0 to 1 each.

PPOCoder adds them as terms to the outcome of tests (Shojaee et al. 2023, arXiv:2301.13816, sec. 3),
as CodeBLEU defines them (Ren et al. 2020, arXiv:2009.10297, sec. 3.2 and 3.3):

    syntax match      sub-trees of the reference that the program has, by how many it has itself;
                      a sub-tree is a node with all below it, without names, values, docstrings
    data-flow match   edges of the reference's data flow that the program has, likewise;
                      variables are numbered in the order of the flow: names do not matter

    def f(x):             sub-trees   Module FunctionDef arguments Return BinOp ...
        y = x + 1         edges       x -> x (used)   {x} -> y (computed)   y -> y (used)
        return y

Both count each match once (clipped), and neither penalises additional parts of the program. They
use trees of Python's own `ast`, where upstream uses tree-sitter: kinds of nodes differ in name and
number, so that the two scores are similar but not equal. The data flow follows the order of the
text, as upstream.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LEFT_OUT = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Tokens that have no name in upstream's syntax trees."""


_MAX_SOURCES = 32
"""Most sources of an edge: thousands of targets that share thousands of sources would fill the
memory."""


class CodeMatch(NamedTuple):
    """The counts behind a score."""

    matched: int
    """Number of the reference's parts that the program has."""
    total: int
    """Number of the reference's parts."""

    @property
    def score(self) -> float:
        """The score, 0 to 1; 1 for a reference without parts."""
        return self.matched / self.total if self.total else 1.0


class CodeParts(NamedTuple):
    """The parts of a program that are compared."""

    subtrees: Counter[str]
    flows: Counter[Edge]


class Edge(NamedTuple):
    """One edge of a data flow; variables are numbers, in the order in which edges name them."""

    target: int
    kind: str
    """"used" where a variable is read, "computed" where it is given a value."""
    sources: tuple[int, ...]


def syntax_match(program: CodeParts, reference: CodeParts) -> CodeMatch:
    """Return CodeBLEU's match of syntax trees."""
    return _clipped(program.subtrees, reference.subtrees)


def data_flow_match(program: CodeParts, reference: CodeParts) -> CodeMatch:
    """Return CodeBLEU's match of data flows."""
    return _clipped(program.flows, reference.flows)


def _clipped(
    found: Counter[str] | Counter[Edge], wanted: Counter[str] | Counter[Edge]
) -> CodeMatch:
    matched = sum(min(number, found[part]) for part, number in wanted.items())  # pyright: ignore[reportArgumentType] (both of one kind)
    return CodeMatch(matched, wanted.total())


def code_parts(tree: ast.Module) -> CodeParts:
    """Return the parts of a program whose tree is not too deep for recursion.

    Time and memory are proportional to the nodes of the tree times its depth.
    """
    subtrees: Counter[str] = Counter()
    _shape(tree, subtrees)
    flow = _Flow()
    flow.visit(tree)
    return CodeParts(subtrees, flow.edges)


def _shape(node: ast.AST, found: Counter[str]) -> str:
    """Return a digest of the sub-tree, equal for equal ones; collect it unless it is a leaf."""
    parts = [_shape(child, found) for child in _below(node)]
    # a digest of digests: nested texts would grow with every level
    text = f"{type(node).__name__} {' '.join(parts)}"
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    if parts:
        found[digest] += 1
    return digest


def _below(node: ast.AST) -> list[ast.AST]:
    body: list[ast.stmt] = getattr(node, "body", []) if isinstance(node, _WITH_DOCSTRING) else []
    docstring = body[0] if body and _is_text(body[0]) else None
    children = ast.iter_child_nodes(node)
    return [one for one in children if one is not docstring and not isinstance(one, _LEFT_OUT)]


_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _is_text(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


class _Flow(ast.NodeVisitor):
    """Follows the values of variables through a program, in the order of its text."""

    def __init__(self) -> None:
        self.edges: Counter[Edge] = Counter()
        self._numbers: dict[str, int] = {}
        self._known: set[str] = set()
        """Variables that have a value; builtins and modules are not among them."""

    def _add(self, target: str, kind: str, sources: Iterable[str]) -> None:
        of_target, *of_sources = (
            self._numbers.setdefault(name, len(self._numbers)) for name in (target, *sources)
        )
        self.edges[Edge(of_target, kind, tuple(of_sources))] += 1

    def visit_Name(self, node: ast.Name) -> None:
        """Add an edge from the source of a variable that is read."""
        if isinstance(node.ctx, ast.Load) and node.id in self._known:
            self._add(node.id, "used", [node.id])

    def visit_arg(self, node: ast.arg) -> None:
        """Give a parameter a value."""
        self._known.add(node.arg)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Add edges from the variables of the value to the targets."""
        self._computed(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Treat an annotated assignment as a plain one; without a value it assigns nothing."""
        if node.value is not None:
            self._computed([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Add edges to the target from itself and from the value."""
        self._computed([node.target], node.value, also=list(_stored(node.target)))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """Treat `name := value` as an assignment."""
        self._computed([node.target], node.value)

    def visit_For(self, node: ast.For) -> None:
        """Add edges from the iterated value to the targets."""
        self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        """Treat it as `for`."""
        self._loop(node)

    def visit_withitem(self, node: ast.withitem) -> None:
        """Add edges from the context to the name."""
        if node.optional_vars is None:
            self.visit(node.context_expr)
        else:
            self._computed([node.optional_vars], node.context_expr)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        """Visit the loops before the element, which comes first in the text."""
        self._comprehended(node.generators, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        """Treat it as a list."""
        self._comprehended(node.generators, [node.elt])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        """Treat it as a list."""
        self._comprehended(node.generators, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> None:
        """Treat it as a list of keys and values."""
        self._comprehended(node.generators, [node.key, node.value])

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        self._computed([node.target], node.iter)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def _comprehended(
        self, generators: Iterable[ast.comprehension], elements: Iterable[ast.expr]
    ) -> None:
        for one in generators:
            self._computed([one.target], one.iter)
            for condition in one.ifs:
                self.visit(condition)
        for element in elements:
            self.visit(element)

    def _computed(self, targets: list[ast.expr], value: ast.expr, also: Iterable[str] = ()) -> None:
        self.visit(value)
        names = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
        known = [name for name in dict.fromkeys((*also, *names)) if name in self._known]
        sources = known[:_MAX_SOURCES]
        for target in targets:
            self.visit(target)  # assigning to a subscript reads its container
            for name in _stored(target):
                self._add(name, "computed", sources)
                self._known.add(name)


def _stored(target: ast.expr) -> Iterator[str]:
    """Yield the variables that an assignment to `target` gives a value."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
