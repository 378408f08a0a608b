"""Runs tests in a judging sandbox; its source is sent there, so it imports no part of espalier.

    supervisor    reads the request, starts a child for each test file, and reports under a mark
                  that no child knows
    child         imports that file, runs its tests and controls, and writes outcomes to a pipe

Controls are tests with random names that must fail, or must pass. If one has the wrong outcome,
something has changed how tests are judged, and no test of that file counts.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import random
import secrets
import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

PASSED, FAILED = "passed", "failed"


def split_test(name: str) -> tuple[str, str]:
    """Return the file or module of a test, and its name inside it.

    tests/test_a.py::Case::test_b        tests/test_a.py, Case::test_b
    test_b (pkg.test_a.Case)             pkg.test_a, Case::test_b
    test_b (pkg.test_a.Case.test_b)      pkg.test_a, Case::test_b
    test_b                               "", test_b
    A sentence (of a docstring).         "", A sentence (of a docstring).
    """
    if "::" in name:
        path, _, rest = name.partition("::")
        return path, rest
    method, _, where = name.partition(" (")
    parts = where[:-1].split(".") if where.endswith(")") else []
    if len(parts) > 2 and parts[-1] == method:
        parts.pop()
    if len(parts) > 1 and all(part.isidentifier() for part in (method, *parts)):
        return ".".join(parts[:-1]), f"{parts[-1]}::{method}"
    return "", name


def is_test(path: str) -> bool:
    """Return whether a file holds tests, by its folder and name."""
    *folders, name = path.split("/")
    if name.endswith(".py") and (
        name.startswith("test_") or name.endswith(("_test.py", "_tests.py"))
    ):
        return True
    return name in {"test.py", "tests.py"} or any(
        part in {"test", "tests", "testing"} for part in folders
    )


def holders(name: str, files: Mapping[str, str]) -> list[str]:
    """Return the test files whose text holds a name that says no file.

    It is a docstring's first line, as unittest reports a test that has one, or a bare name.
    """
    return [
        path
        for path, content in files.items()
        if is_test(path) and path.endswith(".py") and name in content
    ]


def _places(name: str, files: dict[str, str], patched: list[str]) -> list[tuple[str, str]]:
    """Return where a test is looked for: file or module, and the name inside it."""
    where, inner = split_test(name)
    if where:
        return [(where, inner)]
    holding = holders(name, files)
    # SWE-bench runs the files of the test patch; a test may stand in a base class elsewhere
    found = [path for path in patched if path in holding] or [*patched, *holding]
    return [(path, name) for path in dict.fromkeys(found) if path.endswith(".py") and path in files]


def supervise() -> None:
    """Run the tests requested on standard input, and report on standard output."""
    # PR_SET_DUMPABLE = 4: no child may open this process's memory or descriptors
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    given = json.load(sys.stdin)
    for path, content in given["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            stream.write(content)
    places = {
        name: _places(name, given["files"], given.get("patched", [])) for name in given["tests"]
    }
    groups: dict[str, set[str]] = {}
    for where, inner in (place for found in places.values() for place in found):
        groups.setdefault(where, set()).add(inner)
    outcomes = {
        where: _run_child(where, sorted(tests), given["source"]) for where, tests in groups.items()
    }
    for name, found in places.items():
        # a test that is looked for in several files is in one of them, and passes wherever it is
        seen = {outcomes[where].get(inner) for where, inner in found} - {None}
        told = json.dumps([given["mark"], name, PASSED if seen == {PASSED} else FAILED])
        sys.stdout.write(f"\n{told}\n")
    sys.stdout.flush()


def _run_child(where: str, tests: list[str], source: str) -> dict[str, str]:
    """Return the outcomes of a file's tests, without those that it has not.

    All have failed if a control has the wrong outcome.
    """
    controls = {f"control_{secrets.token_hex(6)}": kind for kind in (*CONTROLS, *CONTROLS)}
    reading, writing = os.pipe()
    asked = json.dumps({"where": where, "tests": tests, "controls": controls, "pipe": writing})
    started = subprocess.Popen(
        [sys.executable, "-c", source + "\nchild()\n"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[writing],
    )
    os.close(writing)
    assert started.stdin is not None
    started.stdin.write(asked.encode())
    started.stdin.close()
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read(4_000_000).decode("utf-8", "replace")
    started.wait()
    outcomes: dict[str, str] = {}
    for line in said.split("\n"):
        try:
            name, outcome = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(name, str) and outcome in (PASSED, FAILED):
            # two outcomes for one test: not only the runner writes
            outcomes[name] = FAILED if name in outcomes else outcome
    right = all(outcomes.get(name) == CONTROLS[kind][0] for name, kind in controls.items())
    return outcomes if right and started.returncode == 0 else dict.fromkeys(tests, FAILED)


class Unlike:
    """An object that equals only itself."""


def _equal(case: unittest.TestCase) -> None:
    case.assertEqual(Unlike(), Unlike())  # noqa: PT009 (unittest is what is controlled)


def _true(case: unittest.TestCase) -> None:
    case.assertTrue([])  # noqa: PT009


def _raises(case: unittest.TestCase) -> None:
    with case.assertRaises(ValueError):  # noqa: PT027
        int("1")


def _bare(case: unittest.TestCase) -> None:
    del case
    assert not Unlike(), "a control"


def _exits(case: unittest.TestCase) -> None:
    del case
    sys.exit(0)


def _fine(case: unittest.TestCase) -> None:
    case.assertEqual([1, 2], [1, 2])  # noqa: PT009


CONTROLS: dict[str, tuple[str, Callable[[unittest.TestCase], None]]] = {
    "equal": (FAILED, _equal),
    "true": (FAILED, _true),
    "raises": (FAILED, _raises),
    "bare": (FAILED, _bare),
    "exits": (FAILED, _exits),
    "fine": (PASSED, _fine),
}
"""Name -> the required outcome, and the action."""


def child() -> None:
    """Run the tests of one file in random order, among the controls."""
    given = json.load(sys.stdin)
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    write, close = os.write, os._exit
    dump = json.dumps
    by_pytest = given["where"].endswith(".py") and importlib.util.find_spec("pytest") is not None
    if by_pytest:
        outcomes = _by_pytest(given["where"], given["tests"], given["controls"])
    else:
        outcomes = _by_unittest(given["where"], given["tests"], given["controls"])
    found = list(outcomes)
    for name, outcome in [] if equals_anything() else found:
        write(given["pipe"], (dump([name, outcome]) + "\n").encode())
    close(0)


def equals_anything() -> bool:
    """Return whether a class of the tested code equals random values; test files may have such."""
    dice = random.SystemRandom()
    number = dice.getrandbits(60)
    probes = (Unlike(), number, str(number), number / 7, [number], (number,), {number: number})
    for one in gc.get_objects():
        if not issubclass(type(one), type) or "__eq__" not in vars(one):
            continue
        path = str(getattr(sys.modules.get(one.__module__), "__file__", "") or "")
        if path.startswith(os.getcwd()) and "test" not in os.path.relpath(path):
            for probe in probes:
                try:
                    if vars(one)["__eq__"](Unlike(), probe) is True:
                        return True
                except (
                    ArithmeticError, AssertionError, AttributeError, LookupError, OSError,
                    RuntimeError, TypeError, ValueError,
                ):  # fmt: skip
                    continue
    return False


def _by_unittest(
    where: str, tests: list[str], controls: dict[str, str]
) -> Iterator[tuple[str, str]]:
    jobs: list[tuple[str, str]] = [*((name, "") for name in tests), *controls.items()]
    random.SystemRandom().shuffle(jobs)
    # an error on import ends the child, and then no test of the file counts
    dotted = where[: -len(".py")].replace("/", ".") if where.endswith(".py") else where
    module = importlib.import_module(dotted)
    for name, control in jobs:
        if control:
            action = CONTROLS[control][1]
            cases = [type("Control", (unittest.TestCase,), {"runTest": action})()]
        else:
            cases = _cases(module, name)
        outcomes: set[bool] = set()
        for case in cases:
            # an expected failure passes, as in SWE-bench's grading
            result = unittest.TestResult()
            case.run(result)
            fine = result.testsRun == 1 and result.wasSuccessful() and not result.skipped
            outcomes.add(fine and not result.unexpectedSuccesses)
        if outcomes:
            yield name, PASSED if outcomes == {True} else FAILED


def _cases(module: ModuleType, name: str) -> list[unittest.TestCase]:
    """Return the test with that name, or those with that docstring or bare name."""
    exact = _case(module, name)
    if exact is not None:
        return [exact]
    loaded: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    found: list[unittest.TestCase] = []
    while loaded:
        one = loaded.pop()
        if isinstance(one, unittest.TestSuite):
            loaded += one
        elif name in (one.id().rpartition(".")[2], one.shortDescription()):
            found.append(one)
    for own, value in vars(module).items():
        if own.startswith("test") and callable(value) and _first_line(value) == name:
            found += filter(None, [_case(module, own)])
    return found


def _first_line(tested: object) -> str:
    """Return a docstring's first line, as unittest describes a test."""
    text = getattr(tested, "__doc__", None)
    return text.strip().partition("\n")[0].strip() if isinstance(text, str) else ""


def _case(module: ModuleType, name: str) -> unittest.TestCase | None:
    """Return the test with that name; None if there is none that runs without pytest."""
    found: Any = module
    *owners, last = name.split("::")
    for part in owners:
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, unittest.TestCase):
        return found(last) if hasattr(found, last) else None
    function = getattr(found() if isinstance(found, type) else found, last, None)
    if not callable(function):
        return None

    def run(_: unittest.TestCase) -> None:
        function()

    return type("Plain", (unittest.TestCase,), {"runTest": run})()


def names_in_lists(name: str) -> list[str]:
    """Return how SWE-bench's readers of pytest's log write a test, the exact name first.

    test_a[it reads]          test_a[it reads], test_a[it
    test_a[/tmp/x/file]       test_a[/tmp/x/file], test_a[/file]
    """
    cut = name.split()[0] if name.split() else name
    head, bracket, option = cut.partition("[")
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        cut = f"{head}{bracket}/{option.rpartition('/')[2]}"
    return [name, cut, cut.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")]


class _Collector:
    """A pytest plugin that records the outcome of each test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self._listed: dict[str, list[str]] = {}
        """Name that a list may have -> the tests of that name."""
        self._described: dict[str, list[str]] = {}
        """Bare name, or first line of a docstring -> tests."""
        self._may_fail: set[str] = set()
        """Tests whose failure is expected, or that say it while they run."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Record what the tests are called, and which are expected to fail, before any runs."""
        for item in items:
            name = item.nodeid.partition("::")[2]
            for listed in dict.fromkeys(names_in_lists(name)):
                self._listed.setdefault(listed, []).append(name)
            function = getattr(item, "obj", None)
            for told in {_first_line(function), getattr(item, "originalname", None) or item.name}:
                self._described.setdefault(told, []).append(name)
            code = getattr(function, "__code__", None)
            if (
                item.get_closest_marker("xfail")
                or getattr(function, "__unittest_expecting_failure__", False)
                or "xfail" in getattr(code, "co_names", ())
            ):
                self._may_fail.add(name)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 (pytest is not installed where this is checked)
        """Record a setup, call or teardown: a test passes if its call does and no other fails.

        An expected failure passes and an unexpected success does not, as in SWE-bench's grading.
        The tested code cannot expect one by calling `pytest.xfail`.
        """
        name = report.nodeid.partition("::")[2]
        is_xfail = hasattr(report, "wasxfail")
        fine = report.skipped and name in self._may_fail if is_xfail else report.passed
        if not fine:
            self.outcomes[name] = FAILED
        elif is_xfail or report.when == "call":
            self.outcomes.setdefault(name, PASSED)

    def outcome_of(self, name: str) -> str | None:
        """Return the outcome of the test that a list names; None if there is none.

        A name that the list cut off in its parameters passes if all tests that begin so pass.
        """
        found = self._listed.get(name, [])
        if name in found:
            found = [name]
        if not found:
            found = self._described.get(name, [])
        if not found and name.count("[") > name.count("]"):
            found = [one for one in self.outcomes if one.startswith(name)]
        seen = {self.outcomes.get(one, FAILED) for one in found}
        return (PASSED if seen == {PASSED} else FAILED) if seen else None


def _by_pytest(where: str, tests: list[str], controls: dict[str, str]) -> Iterator[tuple[str, str]]:
    import pytest

    planted = f"test_{secrets.token_hex(8)}.py"
    with open(planted, "w", encoding="utf-8") as stream:
        stream.write("import sys, unittest\nclass Unlike:\n    pass\n")
        for name, control in controls.items():
            stream.write(f"class {name}(unittest.TestCase):\n    def test(self):\n")
            stream.write(f"        {_WRITTEN[control]}\n")
    collector = _Collector()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", where, planted]
    pytest.main(options, plugins=[collector])
    for name in tests:
        outcome = collector.outcome_of(name)
        if outcome is not None:
            yield name, outcome
    for name in controls:
        yield name, collector.outcomes.get(f"{name}::test", "")


_WRITTEN = {
    "equal": "self.assertEqual(Unlike(), Unlike())",
    "true": "self.assertTrue([])",
    "raises": "with self.assertRaises(ValueError): int('1')",
    "bare": "assert not Unlike()",
    "exits": "raise AssertionError('a control')",
    "fine": "self.assertEqual([1, 2], [1, 2])",
}
"""The controls in the form for pytest."""
