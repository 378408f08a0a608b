"""The tool `calculate` of both domains: arithmetic that is parsed, never evaluated as Python."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable

from espalier.environments.tools import ToolError

_MAX_CHARACTERS = 400
_MAX_EXPONENT = 64
_MAX_MAGNITUDE = 1e60
"""Largest base of a power: 9**9**9 would exhaust the memory."""
_ALLOWED = frozenset("0123456789+-*/(). ")

Number = int | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda dividend, divisor: dividend / divisor,
    ast.FloorDiv: lambda dividend, divisor: dividend // divisor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def calculated(expression: str) -> str:
    """Return the value of an expression, rounded to two digits, as Python writes a float.

    Raises:
        ToolError: the expression is not arithmetic, or too large.
    """
    if not _ALLOWED.issuperset(expression):
        raise ToolError("an expression has numbers, + - * /, parentheses and spaces alone")
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(f"an expression of more than {_MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():  # "1 (2)" gives a SyntaxWarning
            warnings.simplefilter("ignore")
            tree = ast.parse(expression.strip(), mode="eval")
        return str(round(float(_value(tree.body)), 2))
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise ToolError(f"this cannot be calculated ({error})") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left, ast.Pow(), right):
            base, exponent = _value(left), _value(right)
            if abs(exponent) > _MAX_EXPONENT or abs(base) > _MAX_MAGNITUDE:
                raise OverflowError("too large a power")
            found = base**exponent
            if isinstance(found, complex):
                raise ValueError("no real number")
            return found
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("no arithmetic")
