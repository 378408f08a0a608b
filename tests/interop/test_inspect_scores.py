"""Our verifiers and inspect_evals' scorers on the same outputs, on a few rows of each task."""

import pytest

from tests.interop.inspect_scores.__main__ import compared
from tests.interop.inspect_scores.outputs import TASKS
from tests.interop.inspect_scores.rows import SHARED

PROGRAMS = ("humaneval", "mbpp")
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
