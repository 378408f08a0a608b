"""Matches of syntax trees and data flows: counted by hand, and invariant where they should be."""

import ast
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.rewards.code_match import code_parts, data_flow_match, syntax_match
from espalier_environments.code.grammar import draw_chain

GOLD = "def f(x):\n    y = x + 1\n    return y\n"


def parts(source):
    return code_parts(ast.parse(source))


def matches(source, gold=GOLD):
    found, wanted = parts(source), parts(gold)
    return syntax_match(found, wanted), data_flow_match(found, wanted)


def test_a_program_has_all_of_itself_and_nothing_has_none():
    syntax, flow = matches(GOLD)
    # Module, FunctionDef, arguments, Assign, BinOp, Return
    assert (syntax.matched, syntax.total, syntax.score) == (6, 6, 1)
    # x used, y computed from x, y used
    assert (flow.matched, flow.total, flow.score) == (3, 3, 1)
    syntax, flow = matches("")
    assert (syntax.matched, flow.matched) == (0, 0)


def test_matches_are_those_counted_by_hand():
    syntax, flow = matches("def g(a):\n    return a + 1\n")
    assert (syntax.matched, syntax.total) == (2, 6), "arguments and BinOp alone are the same"
    assert (flow.matched, flow.total) == (1, 3), "the parameter is used"
    syntax, flow = matches("def g(a):\n    b = a * 2\n    return a\n")
    assert syntax.matched == 6, "operators and names are no part of a tree"
    assert flow.matched == 2, "what is returned is another variable"


def test_codebleus_own_example_has_its_scores():
    """README of k4black/codebleu: both scores are 1.0 for this pair, whose 4-grams hardly agree."""
    said = "def add ( a , b ) :\n return a + b"
    gold = "def sum ( first , second ) :\n return second + first"
    assert [match.score for match in matches(said, gold)] == [1.0, 1.0]


@pytest.mark.parametrize(
    "same",
    [
        "def g(some):\n    other = some + 1\n    return other\n",
        'def f(x):\n    """Add one."""\n    y = x + 1  # so\n    return y\n',
        "def f(x):\n    y = (x +\n         9)\n    return y\n",
    ],
)
def test_names_values_comments_and_docstrings_do_not_matter(same):
    assert [match.score for match in matches(same)] == [1, 1]


def test_a_match_is_counted_once():
    doubled = "a = b(c)\nd = b(c)\n"
    syntax, _ = matches("a = b(c)\n", doubled)
    assert (syntax.matched, syntax.total) == (2, 5), "Call and Assign once, and no Module"
    syntax, _ = matches(doubled * 3, doubled)
    assert (syntax.matched, syntax.total) == (4, 5)


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
    names = [f"v{number}" for number in range(3000)]
    source = f"def f({', '.join(names)}):\n    {'a = ' * 8000}({', '.join(names)})\n"
    edges = parts(source).flows
    assert edges.total() == 11_000
    assert max(len(edge.sources) for edge in edges) == 32


def test_a_gold_without_flow_lacks_nothing():
    _, flow = matches("x = 1\n", "print(2)\n")
    assert (flow.matched, flow.total, flow.score) == (0, 0, 1)


@settings(max_examples=30)
@given(st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_matches_are_shares(one, other):
    first = draw_chain("numbers", one.choice((1, 2, 3)), one).program
    second = draw_chain("words", other.choice((1, 2, 3)), other).program
    for match in matches(first, second):
        assert 0 <= match.matched <= match.total
    assert [match.score for match in matches(first, first)] == [1, 1]
    assert isinstance(parts(first).subtrees, Counter)
