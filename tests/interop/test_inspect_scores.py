"""Our verifiers and inspect_evals' scorers on the same outputs, on a few rows of each task."""

import pytest

from tests.interop.inspect_scores import causes
from tests.interop.inspect_scores.__main__ import compared
from tests.interop.inspect_scores.outputs import TASKS
from tests.interop.inspect_scores.rows import SHARED, Row

PROGRAMS = ("humaneval", "mbpp")
CM = "5 \\text{ cm}"
NEEDS_DATA = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not here")


def check(tasks, most):
    for name, scorer, found in compared(tasks, most):
        assert not [one for one in found if one and not one["cause"]], f"{name}, {scorer}"
        assert sum(one is None for one in found) > len(found) / 2, f"{name}, {scorer}"


@NEEDS_DATA
def test_every_disagreement_with_inspect_evals_has_a_named_cause():
    check([name for name in TASKS if name not in PROGRAMS], 3)


@NEEDS_DATA
@pytest.mark.usefixtures("local_sandboxes")
def test_programs_are_judged_alike_but_for_named_causes():
    check(PROGRAMS, 2)


@pytest.mark.parametrize(
    ("task", "scorer", "right", "kind", "gold", "said", "cause"),
    [
        ("gsm8k", "match", "theirs", "one more", "262500", "262501", causes.FIVE_DIGITS),
        ("gsm8k", "match", "theirs", "one more", "262500", "262601", None),
        ("gsm8k", "match", "ours", "one more", "262500", "262501", None),
        ("gsm8k", "match", "theirs", "line", "262500", "262500", None),
        ("math", "exact", "theirs", "plus one", CM, f"{CM} + 1", causes.UNIT_CUT),
        ("math", "exact", "theirs", "plus one", "5", "5 + 1", None),
        ("math", "a_sympy", "theirs", "plus one", "40_9", "40_9 + 1", causes.READ_IN_PART),
        ("math", "a_sympy", "theirs", "plus one", "40", "40 + 1", None),
        ("math", "exact", "theirs", "other gold", "40_9", "40_9 + 1", None),
        ("math", "exact", "theirs", "equation", "y = 2x", "x = y = 2x", causes.BEHIND_EQUALS),
        ("math", "exact", "theirs", "equation", "y = 2x", "x = y = 3x", None),
        ("math", "exact", "theirs", "equation", "14", "x = 14", None),
    ],
)  # fmt: skip
def test_a_cause_explains_no_other_difference(task, scorer, right, kind, gold, said, cause):
    found = {
        "kind": kind, "right": right, "gold": gold, "output": f"ANSWER: {said}", "why": "",
        "their_why": "",
    }  # fmt: skip
    assert causes.cause_of(task, scorer, found, Row(task, "0", {}, None)) == cause


@pytest.mark.parametrize(
    ("tests", "cause"),
    [
        (["assert f(1) == 1, 0"], causes.MESSAGE),
        (["assert f(1) == 1", "assert f(2) == 2\n"], causes.MESSAGE),
        (["assert f(1) == 1"], None),
    ],
)
def test_only_asserts_that_inspect_breaks_excuse_a_right_program(tests, cause):
    found = {"kind": "block", "right": "ours", "gold": "", "output": ""}
    row = Row("mbpp", "0", {"test_list": tests}, None)
    assert causes.cause_of("mbpp", "verify", found, row) == cause


@pytest.mark.parametrize(("said", "cause"), [("10000", causes.WRONG_LABEL), ("10001", None)])
def test_only_the_digits_of_the_gold_answer_outweigh_a_label(said, cause):
    found = {
        "kind": "model 7", "right": "ours", "gold": "10{,}000", "output": f"ANSWER: {said}",
        "why": "", "their_why": "",
    }  # fmt: skip
    row = Row("math", "labelled-72", {}, None, labels={"model 7": False})
    assert causes.cause_of("math", "exact", found, row) == cause
