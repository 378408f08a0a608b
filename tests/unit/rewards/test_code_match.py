"""Matches of syntax trees and data flows: counted by hand, and invariant where they should be."""

import ast

import pytest

from espalier.rewards.code_match import code_parts, data_flow_match, syntax_match

GOLD = "def f(x):\n    y = x + 1\n    return y\n"
DOUBLED = "a = b(c)\nd = b(c)\n"


def parts(source):
    return code_parts(ast.parse(source))


def matches(source, gold=GOLD):
    found, wanted = parts(source), parts(gold)
    return syntax_match(found, wanted), data_flow_match(found, wanted)


@pytest.mark.parametrize(
    ("said", "gold", "syntax", "flow"),
    [
        # Module, FunctionDef, arguments, Assign, BinOp, Return; x used, y of x, y used
        (GOLD, GOLD, (6, 6), (3, 3)),
        ("", GOLD, (0, 6), (0, 3)),
        # arguments and BinOp alone are the same, and the parameter is used
        ("def g(a):\n    return a + 1\n", GOLD, (2, 6), (1, 3)),
        # operators and names are no part of a tree; what is returned is another variable
        ("def g(a):\n    b = a * 2\n    return a\n", GOLD, (6, 6), (2, 3)),
        # Call and Assign once, and no Module
        ("a = b(c)\n", DOUBLED, (2, 5), None),
        (DOUBLED * 3, DOUBLED, (4, 5), None),
        # a gold without flow lacks nothing
        ("x = 1\n", "print(2)\n", None, (0, 0)),
    ],
)
def test_matches_are_those_counted_by_hand(said, gold, syntax, flow):
    for match, expected in zip(matches(said, gold), (syntax, flow), strict=True):
        if expected:
            assert (match.matched, match.total) == expected
            assert match.score == (expected[0] / expected[1] if expected[1] else 1)


@pytest.mark.parametrize(
    ("same", "gold"),
    [
        ("def g(some):\n    other = some + 1\n    return other\n", GOLD),
        ('def f(x):\n    """Add one."""\n    y = x + 1  # so\n    return y\n', GOLD),
        ("def f(x):\n    y = (x +\n         9)\n    return y\n", GOLD),
        # README of k4black/codebleu: both scores are 1.0, though the 4-grams hardly agree
        (
            "def add ( a , b ) :\n return a + b",
            "def sum ( first , second ) :\n return second + first",
        ),
    ],
)
def test_names_values_comments_and_docstrings_do_not_matter(same, gold):
    assert [match.score for match in matches(same, gold)] == [1, 1]


@pytest.mark.parametrize(
    ("source", "edges"),
    [
        ("def f(x):\n    for v in x:\n        v += 1\n", 3),  # x used, v of x, v of v
        ("def f(x):\n    return [v for v in x if v]\n", 4),
        ("def f(x):\n    a, b = x\n    return {a: b}\n", 5),
        ("def f(x):\n    while (n := len(x)):\n        x[0] = n\n", 4),
        ("def f(x):\n    with x as y:\n        y.z = x\n", 4),
        ("def f():\n    return sum([])\n", 0),
    ],
)
def test_values_are_followed_through_every_statement(source, edges):
    assert parts(source).flows.total() == edges


def test_many_targets_of_many_sources_stay_small():
    names = ", ".join(f"v{number}" for number in range(3000))
    edges = parts(f"def f({names}):\n    {'a = ' * 8000}({names})\n").flows
    assert edges.total() == 11_000
    assert max(len(edge.sources) for edge in edges) == 32
