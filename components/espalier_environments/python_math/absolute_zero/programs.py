"""Programs for Absolute Zero: drawn calculations, and the screening of a model's programs.

    def f(x):
        x += 14
        x *= 3
        return x

Screening parses a proposed program before it runs in a sandbox, and never executes it here. The
sandbox isolates the program; screening refuses programs that are not deterministic, or that read
more than their arguments.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from espalier.config import SynthesisConfig
from espalier.environments.funnel import Funnel
from espalier_environments.python_math.arithmetic import VARIABLE, Calculation, calculation_split
from espalier_environments.python_math.execution import FUNCTION
from espalier_environments.python_math.stories import StoryGenerator

MAX_STEPS = 4
_INPUTS = (5, 99)
_DRAWS = 200


class Proposal(NamedTuple):
    """A program that defines f, and calls of it."""

    program: str
    parameters: str
    inputs: tuple[str, ...]
    """Source text of each call's arguments; a task with one case takes the first."""
    expression: str
    """The return value of f as an expression in its parameters; empty if it is not a single
    expression."""
    steps: int
    kind: str
    """A name that programs with the same operations share, such as "add > times"."""


def chain_proposals(steps: int, num_inputs: int, rng: random.Random) -> Iterator[Proposal]:
    """Yield distinct calculations of the training split with `steps` operations.

    The calculation for each input belongs to the training split too, so that no dev or held-out
    story is computed.
    """
    weights = [0.0] * MAX_STEPS
    weights[steps - 1] = 1.0
    config = SynthesisConfig.model_validate({"chain_weights": weights})
    generator = StoryGenerator("train", config, rng.getrandbits(48), Funnel())
    for calculation in generator.calculations(_DRAWS):
        starts = _starts(calculation, num_inputs, rng)
        if len(starts) != num_inputs:
            continue

        lines = [change.line for change in calculation.changes]
        body = "\n    ".join([*lines, f"return {VARIABLE}"])

        # one expression: `x += 14`, `x *= 3` becomes `((x) + (14)) * (3)`
        expression = VARIABLE
        for line in lines:
            _, operator, operand = line.split(" ", 2)
            expression = f"({expression}) {operator.removesuffix('=')} ({operand})"

        yield Proposal(
            program=f"def f({VARIABLE}):\n    {body}",
            parameters=VARIABLE,
            inputs=tuple(map(str, starts)),
            expression=expression,
            steps=steps,
            kind=" > ".join(change.label for change in calculation.changes),
        )


def _starts(calculation: Calculation, count: int, rng: random.Random) -> list[int]:
    """Return start values, the calculation's own first, that keep it in the training split."""
    others = rng.sample(range(*_INPUTS), _INPUTS[1] - _INPUTS[0])
    found = [calculation.start]
    for start in others:
        if len(found) == count:
            break
        if (
            start != calculation.start
            and calculation_split(Calculation(start, calculation.changes)) == "train"
        ):
            found.append(start)
    return found


MAX_PROGRAM_CHARACTERS = 1500
ALLOWED_MODULES = frozenset(
    re.findall(
        r"\w+",
        """
        bisect collections fractions functools heapq itertools math operator re statistics string
        typing
        """,
    )
)
"""Modules of the standard library that compute from their arguments only."""
FORBIDDEN_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
        attrgetter breakpoint builtins compile delattr dir eval exec exit getattr globals hash help
        id input locals memoryview methodcaller modules object open print quit setattr sys type vars
        """,
    )
)
"""Forbidden besides names that begin with two underscores. Modules lead to others, for example
`typing.sys.modules`."""
_MAX_PARAMETERS = 4


class Screened(NamedTuple):
    """A program in normalized form: without comments, docstrings and irregular white space."""

    program: str
    parameters: str
    expression: str
    """The expression of a function that is a single return statement, else empty."""
    steps: int
    """Number of statements inside the function."""


def screened(text: str) -> Screened | str:
    """Return the program in normalized form, or the reason to refuse it; never raises."""
    if len(text) > MAX_PROGRAM_CHARACTERS:
        return "program_too_long"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in the model's text
            tree = ast.parse(text)
        fault = _fault(tree)
        if fault:
            return fault
        [function] = [node for node in tree.body if _is_function(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return _screened(tree, function)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "not_python"


def _screened(tree: ast.Module, function: ast.stmt) -> Screened:
    assert isinstance(function, ast.FunctionDef), "screening has checked this"
    only = function.body[0]
    expression = ""
    if len(tree.body) == len(function.body) == 1 and isinstance(only, ast.Return) and only.value:
        expression = ast.unparse(only.value)
    return Screened(
        program=ast.unparse(tree),
        parameters=", ".join(argument.arg for argument in function.args.args),
        expression=expression,
        steps=sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1,
    )


def _fault(tree: ast.Module) -> str:
    functions = [node for node in tree.body if _is_function(node)]
    if len(functions) != 1:
        return "defines_no_f"

    # one to four positional parameters, and no decorator
    function = functions[0]
    assert isinstance(function, ast.FunctionDef), "only functions are kept above"
    found = function.args
    others = (found.posonlyargs, found.kwonlyargs, found.defaults, function.decorator_list)
    has_others = any(others) or found.vararg is not None or found.kwarg is not None
    if has_others or not 1 <= len(found.args) <= _MAX_PARAMETERS:
        return "arguments_of_another_shape"

    if not all(isinstance(node, _AT_TOP) for node in tree.body):
        return "does_more_than_define"
    faults = (_forbidden(node) for node in ast.walk(tree))
    return next((fault for fault in faults if fault), "")


def _forbidden(node: ast.AST) -> str:
    """Return the reason to refuse a program with this node; empty to accept."""
    match node:
        case ast.Import(names):
            modules = [name.name.partition(".")[0] for name in names]
            return "" if ALLOWED_MODULES.issuperset(modules) else "forbidden_module"
        case ast.ImportFrom(module=module, level=level):
            known = level == 0 and (module or "").partition(".")[0] in ALLOWED_MODULES
            return "" if known else "forbidden_module"
        case ast.alias(name):  # an imported name; the module was checked above
            return "forbidden_name" if _is_hidden(name) else ""
        case ast.Name(identifier) | ast.Attribute(attr=identifier):
            return "forbidden_name" if _is_hidden(identifier) else ""
        case ast.Global() | ast.Nonlocal() | ast.AsyncFunctionDef() | ast.Await() | ast.Yield():
            return "keeps_state"
        case _:
            return ""


def _is_hidden(name: str) -> bool:
    return name.startswith("__") or name in FORBIDDEN_NAMES


def _is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == FUNCTION


_AT_TOP = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assign)
