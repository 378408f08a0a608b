import ast

import pytest

from tests.mutation.__main__ import draw
from tests.mutation.mutants import changed_lines, find_mutants, mutate
from tests.mutation.trials import ROOT


def changes(source):
    """What each mutant of a source does to the line that it changes."""
    mutants = find_mutants("m.py", source)
    return [changed_lines(source, mutate(source, m)).split("\n+ ")[1] for m in mutants]


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a is not b", ["a is b"]),
        ("a in b", ["a not in b"]),
        ("a - b", ["a + b"]),
        ("a / (b + c)", ["a * (b + c)", "a / (b - c)"]),
        ("a * b ** c", ["a / b ** c", "a * (b * c)"]),
        ("a & ~b", ["a | ~b", "a & b"]),
        ("-(a + b)", ["a + b", "-(a - b)"]),
        ("a and not b", ["a or not b", "a and b"]),
        ("a if b > c else d", ["a if b >= c else d", "a if b <= c else d"]),
        ("'é' + a", ["'é' - a"]),
    ],
)
def test_an_expression_is_changed_in_one_place(line, changed):
    assert changes(f"{line}\n") == changed


def test_statements_are_changed_in_one_place():
    source = "def f(a):\n    a += 2\n    while a:\n        a = 3\n"
    assert changes(source) == ["a -= 2", "a += 3", "while not a:", "a = 4"]


@pytest.mark.parametrize(
    "source",
    [
        '"""a < b and 1"""\n',
        "x: int | None = 1\n",
        "def f(a: int | None = None) -> str | int: ...\n",
        "Union = Grpo | Gae\n",
        "def f(a):\n    raise ValueError(1 + a)\n",
        "def f(a):\n    return f'{a + 1}'\n",
        "def f(a):\n    return json.dumps(a, indent=2)\n",
        "if TYPE_CHECKING:\n    a = b + c\n",
        "assert a < b\n",
    ],
)
def test_types_texts_and_settings_are_left_alone(source):
    assert changes(source) == []


def test_what_surrounds_a_change_stays_as_it_is():
    source = "x = [\n    a + b,  # why\n    'c',\n]\n"
    mutant, *_ = find_mutants("m.py", source)
    assert mutate(source, mutant) == source.replace("a + b", "a - b")


def test_drawn_mutants_are_python():
    for mutant in draw("environments", seed=0, count=10):
        source = (ROOT / "components" / mutant.path).read_text()
        changed = mutate(source, mutant)
        assert changed != source
        ast.parse(changed)


def test_a_seed_draws_the_same_mutants_again():
    drawn = draw("storage", seed=3, count=5)
    assert drawn == draw("storage", seed=3, count=5) != draw("storage", seed=4, count=5)
    assert len(set(drawn)) == 5
