"""Tests by the names that SWE-bench's lists have, run by our runner without a sandbox.

The rules are those of SWE-bench at 7a21e057 (`swebench/harness/grading.py` and `log_parsers`).
"""

import inspect
import json
import subprocess
import sys

import pytest

from espalier_environments.software_repair import test_runner as runner

FILES = {
    "pkg/__init__.py": "",
    "pkg/area.py": """
import unittest
def double(x):
    return x * 2
def gives_up(x):
    import pytest
    pytest.xfail("it is not done")
def leaves_out(x):
    raise unittest.SkipTest("it is not done")
""",
    "tests/__init__.py": "",
    "tests/test_a.py": '''
import pytest, unittest
from pkg.area import double, gives_up, leaves_out
@pytest.mark.xfail
def test_marked():
    assert double(1) == 3
@pytest.mark.xfail(raises=ValueError)
def test_marked_for_another_error():
    assert double(1) == 3
@pytest.mark.xfail(run=False)
def test_not_run():
    assert double(1) == 3
@pytest.mark.xfail
def test_marked_and_right():
    assert double(1) == 2
@pytest.mark.xfail(strict=True)
def test_strict_and_right():
    assert double(1) == 2
def test_says_so_itself():
    if double(1) == 2:
        pytest.xfail("known")
    assert False
def test_says_so_of_its_request(request):
    request.node.add_marker(pytest.mark.xfail(reason="known"))
    assert double(1) == 3
def test_plain():
    """Doubling one gives two.

    And more.
    """
    assert double(1) == 2
def test_the_code_gives_up():
    assert gives_up(1) == 2
def test_the_code_leaves_out():
    assert leaves_out(1) == 2
@pytest.mark.parametrize("why", ["it has no read", "it has no write", "items"])
def test_cut(why):
    assert why != "items"
@pytest.mark.parametrize("why", ["is right", "is wrong"])
def test_partly(why):
    assert why == "is right"
@pytest.mark.parametrize("why", ["log(photon /cm", "log(photon /s"])
def test_units(why):
    assert why
@pytest.mark.parametrize("path", ["/tmp/one/file.dcm"])
def test_path(path):
    assert path
class TestMethods:
    def test_method(self):
        """A method has a docstring."""
        assert double(2) == 4
''',
    "tests/test_b.py": '''
import unittest
from pkg.area import double
from tests.bases import Base
class Case(unittest.TestCase):
    def test_described(self):
        """Doubling keeps the sign (#17)."""
        self.assertEqual(double(-2), -4)
    def test_described_and_wrong(self):
        """Doubling loses the sign."""
        self.assertEqual(double(-2), 4)
    def test_bare(self):
        self.assertEqual(double(-2), -4)
    @unittest.expectedFailure
    def test_known(self):
        self.assertEqual(double(1), 3)
    @unittest.expectedFailure
    def test_known_and_right(self):
        self.assertEqual(double(1), 2)
class Inherited(Base, unittest.TestCase):
    twice = 4
''',
    "tests/bases.py": '''
class Base:
    def test_inherited(self):
        """Base classes describe tests."""
        self.assertEqual(self.twice, 4)
''',
}
PASS = [
    "tests/test_a.py::test_marked",
    "tests/test_a.py::test_not_run",
    "tests/test_a.py::test_says_so_itself",
    "tests/test_a.py::test_says_so_of_its_request",
    "tests/test_a.py::test_plain",
    "tests/test_a.py::test_cut[it",
    "tests/test_a.py::test_cut[it has no read]",
    "tests/test_a.py::test_units[log(photon",
    "tests/test_a.py::test_units[log(pho",
    "tests/test_a.py::test_path[/file.dcm]",
    "tests/test_a.py::test_partly[is right]",
    "tests/test_a.py::TestMethods::test_method",
    "tests/test_b.py::Case::test_known",
    "Doubling one gives two.",
    "A method has a docstring.",
    "Doubling keeps the sign (#17).",
    "Base classes describe tests.",
    "test_bare",
    "test_known (tests.test_b.Case)",
    "test_known (tests.test_b.Case.test_known)",
    "test_inherited (tests.test_b.Inherited)",
]
FAIL = [
    "tests/test_a.py::test_marked_for_another_error",
    "tests/test_a.py::test_marked_and_right",
    "tests/test_a.py::test_strict_and_right",
    "tests/test_a.py::test_the_code_gives_up",
    "tests/test_a.py::test_the_code_leaves_out",
    "tests/test_a.py::test_cut[items]",
    "tests/test_a.py::test_cut[i",
    "tests/test_a.py::test_partly[is",
    "tests/test_a.py::test_absent",
    "tests/test_a.py::test_absent[it",
    "tests/absent.py::test_plain",
    "Doubling loses the sign.",
    "Doubling",
    "A sentence of no test.",
    "test_known_and_right (tests.test_b.Case)",
    "test_absent (tests.test_b.Case)",
]


def passed(files, tests, patched=()):
    source = inspect.getsource(runner)
    asked = {"files": files, "tests": tests, "patched": list(patched), "mark": "M"}
    return subprocess.run(
        [sys.executable, "-c", source + "\nsupervise()\n"],
        input=json.dumps({**asked, "source": source}).encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()


def outcomes(text):
    told = [json.loads(line) for line in text.split("\n") if line.startswith('["M"')]
    return {name: outcome for _, name, outcome in told}


@pytest.mark.slow
def test_names_of_lists_find_their_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = dict.fromkeys(PASS, runner.PASSED) | dict.fromkeys(FAIL, runner.FAILED)
    assert outcomes(passed(FILES, [*PASS, *FAIL], ["tests/test_b.py", "tests/gone.py"])) == right


@pytest.mark.slow
def test_a_docstring_counts_where_the_test_patch_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'def test_it():\n    """It holds."""\n    assert {}\n'
    files = {"tests/test_new.py": text.format(1), "tests/test_old.py": text.format(0)}
    for patched, outcome in ((["tests/test_new.py"], runner.PASSED), ([], runner.FAILED)):
        assert outcomes(passed(files, ["It holds."], patched)) == {"It holds.": outcome}


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("tests/test_a.py::Case::test_b", ("tests/test_a.py", "Case::test_b")),
        ("tests/test_a.py::test_b[a (b.c)]", ("tests/test_a.py", "test_b[a (b.c)]")),
        ("test_b (pkg.test_a.Case)", ("pkg.test_a", "Case::test_b")),
        ("test_b (pkg.test_a.Case.test_b)", ("pkg.test_a", "Case::test_b")),
        ("test_b (Case)", ("", "test_b (Case)")),
        ("test_b", ("", "test_b")),
        ("A sentence about a test.", ("", "A sentence about a test.")),
        ("An index can be rendered (#2713).", ("", "An index can be rendered (#2713).")),
        ("An index (see a.b) is made", ("", "An index (see a.b) is made")),
        ("Rendered (e.g. an index)", ("", "Rendered (e.g. an index)")),
        ("Rendered (a.b)", ("a", "b::Rendered")),
    ],
)
def test_a_name_says_its_file_or_none(name, place):
    assert runner.split_test(name) == place
