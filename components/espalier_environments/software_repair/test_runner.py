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
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

PASSED, FAILED = "passed", "failed"


def split_test(name: str) -> tuple[str, str]:
    """Return the file or module of a test, and its name inside it.

    tests/test_a.py::Case::test_b        tests/test_a.py, Case::test_b
    test_b (pkg.test_a.Case)             pkg.test_a, Case::test_b
    test_b (pkg.test_a.Case.test_b)      pkg.test_a, Case::test_b
    """
    if "::" in name:
        path, _, rest = name.partition("::")
        return path, rest
    method, _, where = name.partition(" (")
    parts = where.rstrip(")").split(".")
    if len(parts) > 2 and parts[-1] == method:
        parts.pop()
    if where and len(parts) > 1:
        return ".".join(parts[:-1]), f"{parts[-1]}::{method}"
    return "", name


def supervise() -> None:
    """Run the tests requested on standard input, and report on standard output."""
    # PR_SET_DUMPABLE = 4: no child may open this process's memory or descriptors
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    given = json.load(sys.stdin)
    for path, content in given["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            stream.write(content)
    groups: dict[str, dict[str, str]] = {}
    for name in given["tests"]:
        where, inner = split_test(name)
        groups.setdefault(where, {})[inner] = name
    for where, tests in groups.items():
        outcomes = _run_child(where, sorted(tests), given["source"])
        for inner, name in tests.items():
            told = json.dumps([given["mark"], name, outcomes.get(inner, FAILED)])
            sys.stdout.write(f"\n{told}\n")
            sys.stdout.flush()


def _run_child(where: str, tests: list[str], source: str) -> dict[str, str]:
    """Return the outcomes of a file's tests; none if a control has the wrong outcome."""
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
    return outcomes if right and started.returncode == 0 else {}


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
    module = _module(where)
    for name, control in jobs:
        if control:
            action = CONTROLS[control][1]
            case = type("Control", (unittest.TestCase,), {"runTest": action})()
        else:
            case = _case(module, name)
        if case is None:
            yield name, FAILED
            continue
        result = unittest.TestResult()
        case.run(result)
        fine = result.testsRun == 1 and result.wasSuccessful() and not result.skipped
        yield name, PASSED if fine and not result.unexpectedSuccesses else FAILED


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    dotted = where[: -len(".py")].replace("/", ".")
    return importlib.import_module(dotted)


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


class _Collector:
    """A pytest plugin that records the outcome of each test."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 (pytest is not installed where this is checked)
        """Record a phase: a test passes if its call passes and no other phase fails."""
        name = report.nodeid.partition("::")[2]
        if report.failed or report.skipped:
            self.outcomes[name] = FAILED
        elif report.when == "call":
            self.outcomes.setdefault(name, PASSED)


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
        yield name, collector.outcomes.get(name, FAILED)
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
