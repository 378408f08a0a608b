"""The process that scores: answers are hostile text, and upstream evaluates some of them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from espalier.environments import EnvironmentLostError
from espalier.records import DataError, ProfileError
from espalier_environments.procedural import worker
from espalier_environments.procedural.config import GENERATORS
from espalier_environments.procedural.generators import Generators, GeneratorsError, generators_of
from espalier_environments.procedural.packages import own_python, python_of
from tests.unit.environments.procedural import NEEDS_GENERATORS

EVALUATING = (  # whose score_answer evaluates an answer as Python, or has sympy do so
    "binary_matrix", "countdown", "intermediate_integration", "n_queens",
    "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix",
    "string_insertion",
)  # fmt: skip
MANY_ANSWERS = {"propositional_logic": "whatever follows from the premises is right"}


@pytest.fixture(scope="module")
def generators():
    return generators_of(own_python())


def asked(generators, name, answer=None, place=0):
    (item,) = generators.items(name, {}, range(place, place + 1))
    said = item.gold if answer is None else answer
    return generators.score(name, {}, place, item.question, said)


@pytest.mark.parametrize("text", ["1 + 2*(3 - x)**2", "sin(2*x)/4 + C", "1.5e3*x", "", "\n3"])
def test_arithmetic_is_handed_to_sympy(text):
    assert worker.arithmetic(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')", "eval(x)", "x.__class__", "(1).real", "x.a", "open", "[x for x in y]",
        "lambda", "1e99999", "100000!", "\u00e9", "1;2", "x=1", "1" * 2001,
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_not_evaluated(text):
    with pytest.raises(ValueError, match="arithmetic"):
        worker.arithmetic(text)


@NEEDS_GENERATORS
def test_a_rare_event_is_not_impossible(generators):
    for place in range(200):
        (item,) = generators.items("coin_flip", {}, range(place, place + 1))
        right = float(item.gold)
        for said, is_near in (("0", right == 0), (item.gold, True), (repr(right * 1.05), False)):
            score = generators.score("coin_flip", {}, place, item.question, said)
            assert score.right is is_near, (item, said)


@NEEDS_GENERATORS
@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_runs_nothing(generators, tmp_path, name):
    mark = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for answer in (code, f"eval({code!r})", f"[{code}]", f"({code}, 1)", f"x + {code}"):
        assert not asked(generators, name, answer).right
    assert asked(generators, name).right, "its gold answer is judged as before"
    assert not mark.exists()


@NEEDS_GENERATORS
@pytest.mark.parametrize(
    ("name", "answer", "score"),
    [
        ("game_of_life_halting", "anything", 1.0),
        ("puzzle24", "1*3*5 + 9", 1.0),
        ("complex_arithmetic", "nan", 1.0),
        ("chain_sum", "", 0.0),
        ("chain_sum", "1" * 30_000, 0.0),
        ("number_sorting", "[" * 10_000, 0.0),
        ("codeio", "\ud800", 0.0),
        ("countdown", "9**9**9**9", 0.0),  # it would take too long
    ],
)
def test_an_answer_that_cheats_upstream_is_not_right(generators, name, answer, score):
    started = time.monotonic()
    place = 3  # the first puzzle of 24 has these numbers
    assert asked(generators, name, answer, place=place) == (score, False)
    assert time.monotonic() - started < 60


@NEEDS_GENERATORS
def test_sampled_generators_accept_their_own_answer_alone(generators):
    assert tuple(generators.names()) == GENERATORS
    for name in GENERATORS[4::9]:
        first, second = generators.items(name, {}, range(2))
        for place in range(2):
            assert asked(generators, name, place=place).right, name
        if first.gold != second.gold and name not in MANY_ANSWERS:
            assert not asked(generators, name, second.gold).right, name


@NEEDS_GENERATORS
def test_faults_of_a_request_are_one_message(generators):
    with pytest.raises(DataError, match="chain_sum"):
        generators.items("chain_sum", {"min_terms": 9, "max_terms": 2}, range(1))
    with pytest.raises(DataError, match="no_such_knob"):
        generators.items("chain_sum", {"no_such_knob": 1}, range(1))
    with pytest.raises(DataError, match="curriculum"):
        generators.levels("list_functions", 2)
    with pytest.raises(DataError, match="version"):
        generators.score("chain_sum", {}, 0, "another question", "1")


@NEEDS_GENERATORS
def test_another_process_has_the_same_items_until_it_is_ended(generators):
    other = Generators(own_python())
    for name in ("zebra_puzzles", "graph_color", "group_anagrams"):  # made from sets
        assert other.items(name, {}, range(2)) == generators.items(name, {}, range(2))
    os.kill(other.process_id, signal.SIGKILL)
    with pytest.raises(EnvironmentLostError, match="ended"):
        other.score("chain_sum", {}, 0, "a question", "1")
    assert other.process_id is None, "the next request starts another"


def test_an_unfit_interpreter_is_one_message(tmp_path):
    generators = Generators(Path(sys.executable))
    with pytest.raises(GeneratorsError, match="environments add procedural"):
        generators.names()
    with pytest.raises(ProfileError, match="environments add procedural"):
        python_of(tmp_path / "python")
