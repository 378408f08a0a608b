"""Which test files are run first against a mutant, and in which batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.mutants import find_mutants
from tests.mutation.trials import Copy, Outcome, by_nearness

SOURCE = """
LEAST = 1


def gain(one, other):
    return one - other


class Gate:
    def judge(self, one):
        return one > LEAST
"""
TESTS = {
    "test_a_other.py": "from espalier.registry import versions\n",
    "test_b_package.py": "from espalier.registry import gain\n",
    "test_c_module.py": "from espalier.registry.gate import LEAST\n",
    "test_d_class.py": "from espalier.registry import Gate\nGate().judge(1)\n",
}


def nearest(folder, word):
    for name, text in TESTS.items():
        (folder / name).write_text(text)
    path = "espalier/registry/gate.py"
    mutant = next(m for m in find_mutants(path, SOURCE) if word in SOURCE.splitlines()[m.line - 1])
    return [file.stem for file in by_nearness(mutant, SOURCE, sorted(folder.iterdir()))]


def test_tests_that_use_what_is_mutated_come_first(tmp_path):
    for word, near in (("one >", "test_d_class"), ("one -", "test_b_package")):
        found = nearest(tmp_path, word)
        assert found[:2] == [near, "test_c_module"]
        assert sorted(f"{one}.py" for one in found) == [*TESTS]


class Trial(Copy):
    """A copy whose runs of tests are scripted: which file of tests fails, and what was run."""

    def __init__(self, folder, fails):
        self._components = folder
        self._fails = fails
        self.ran = []

    def run(self, tests, *, limit_s):
        self.ran.append([Path(test).stem for test in tests])
        failed = [test.stem for test in tests if test.stem == self._fails]
        return Outcome("killed" if failed else "survived", 1.0, *failed)


@pytest.mark.parametrize(
    ("fails", "verdict", "batches"), [("t0", "killed", 1), ("t5", "killed", 2), ("", "survived", 3)]
)
def test_a_trial_ends_with_the_first_batch_that_fails(tmp_path, fails, verdict, batches):
    tests = [tmp_path / f"t{number}.py" for number in range(9)]
    for test in tests:
        test.touch()
    (tmp_path / "espalier").mkdir()
    source = tmp_path / "espalier" / "gate.py"
    source.write_text(SOURCE)
    (mutant, *_) = find_mutants("espalier/gate.py", SOURCE)
    trial = Trial(tmp_path, fails)
    outcome = trial.try_mutant(mutant, tests, limit_s=9.0)
    assert (outcome.verdict, outcome.seconds, outcome.by) == (verdict, batches, fails)
    assert [len(ran) for ran in trial.ran] == [2, 4, 3][:batches]
    assert source.read_text() == SOURCE
