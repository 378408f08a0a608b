"""Runs the quick tests of a package against one mutant after another, those nearest to it first.

Each run is a fork of one process that has loaded the large libraries and nothing of this one, which
spares most of what a run takes.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from tests.mutation.mutants import Mutant, mutate

ROOT = Path(__file__).parents[2]
COMPONENTS = ROOT / "components"
PRELOADED = (
    "hypothesis",
    "httpx2",
    "minio",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "networkx",
    "numpy",
    "openai",
    "pandas",
    "pyarrow.parquet",
    "pydantic",
    "scipy.stats",
    "starlette.applications",
    "sympy",
    "tokenizers",
    "torch",
    "transformers.models.auto",
    "uvicorn",
)
QUICK = ("-m", "not slow", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0")
BATCHES = (2, 4)
"""Test files that are run before all others, and before what is left: pytest loads all the files of
a run before the first test, and most mutants are killed by the tests nearest to them."""
MAX_ADDRESS_BYTES = 16 * 2**30
MAX_FILE_BYTES = 2**30
"""A loop that a mutant has made endless must not fill the machine before its time is over."""

Verdict = Literal["killed", "survived", "timeout"]


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a mutant."""

    verdict: Verdict
    seconds: float
    by: str = ""
    """The first test that failed, or the last words of pytest where none was run."""


class Copy:
    """A copy of the library in which files are mutated; the user's own files are never written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._components = folder / "components"
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
        shutil.copytree(COMPONENTS, self._components, ignore=ignored)
        self._commit()
        for name in PRELOADED:
            importlib.import_module(name)

    def try_mutant(self, mutant: Mutant, tests: Sequence[Path], *, limit_s: float) -> Outcome:
        """Run the tests with the mutant in place of its file, which is put back after.

        The test files nearest to the mutant are run first, in batches of their own.
        """
        path = self._components / mutant.path
        source = path.read_text(encoding="utf-8")
        rest = by_nearness(mutant, source, tests)
        seconds = 0.0
        self._write(path, mutate(source, mutant))
        try:
            for size in (*BATCHES, len(rest)):
                batch, rest = rest[:size], rest[size:]
                outcome = self.run(batch, limit_s=limit_s)
                seconds += outcome.seconds
                if outcome.verdict != "survived":
                    break
        finally:
            self._write(path, source)
        return Outcome(outcome.verdict, round(seconds, 1), outcome.by)

    def run(self, tests: Sequence[Path], *, limit_s: float) -> Outcome:
        """Run the quick ones of these tests until the first that fails."""
        if not tests:
            return Outcome("survived", 0.0)
        began_s = time.monotonic()
        said = self._folder / "said"
        child = os.fork()
        if child == 0:
            self._become_pytest(tests, said)
        status = _status_within(child, limit_s)
        seconds = round(time.monotonic() - began_s, 1)
        if status is None:
            return Outcome("timeout", seconds)
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return Outcome("survived", seconds)
        text = said.read_text(encoding="utf-8", errors="replace").strip()
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        return Outcome("killed", seconds, failed[1] if failed else text[-200:])

    def _become_pytest(self, tests: Sequence[Path], said: Path) -> NoReturn:
        code = 1
        try:
            os.setsid()
            for limit, most in (
                (resource.RLIMIT_AS, MAX_ADDRESS_BYTES),
                (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
                (resource.RLIMIT_CORE, 0),
            ):
                resource.setrlimit(limit, (most, most))
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for place, descriptor in ((0, nothing), (1, output), (2, output)):
                os.dup2(descriptor, place)
            os.environ["PYTHONPATH"] = str(self._components)  # for processes that tests start
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self._folder / "hypothesis")
            sys.path.insert(0, str(self._components))
            os.chdir(ROOT)
            code = int(pytest.main([*QUICK, *map(str, tests)]))
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _commit(self) -> None:
        """Keep the copy in git, as the library of a checkout is: a run says its commit."""
        git = ["git", "-C", str(self._folder), "-c", "user.name=copy", "-c", "user.email=copy"]
        for command in (["init", "-q"], ["add", "components"], ["commit", "-q", "-m", "copy"]):
            subprocess.run([*git, *command], check=True)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Python tells a stale bytecode file by second and size, which a mutant may share
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def test_files(paths: Sequence[str]) -> list[Path]:
    """The test files at and under these paths of the repository."""
    places = [ROOT / path for path in paths]
    if absent := [str(place) for place in places if not place.exists()]:
        raise FileNotFoundError(f"no tests at {', '.join(absent)}: see tests/mutation/__main__.py")
    return [
        file
        for place in places
        for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])
    ]


def by_nearness(mutant: Mutant, source: str, tests: Sequence[Path]) -> list[Path]:
    """The test files, first those that import the mutated module or use what the mutant is in."""
    module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    stem = module.rpartition(".")[2]
    tree = ast.parse(source)
    defined = {node.name for node in tree.body if isinstance(node, _Definition)}
    around = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, _Definition)
        and node.lineno <= mutant.line <= (node.end_lineno or node.lineno)
    }

    def distance(test: Path) -> tuple[float, Path]:
        text, words = _text_and_words(test)
        imports = re.search(rf"{re.escape(module)}\b", text) is not None
        points = 4 * len(around & words) + len(defined & words) + 3 * imports
        points += 2 * (stem in test.stem) + (Path(mutant.path).parent.name in test.parts)
        return -points, test

    return sorted(tests, key=distance)


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def _text_and_words(test: Path) -> tuple[str, frozenset[str]]:
    text = test.read_text(encoding="utf-8")
    return text, frozenset(re.findall(r"\w+", text))


def _status_within(child: int, limit_s: float) -> int | None:
    """The child's exit status; None where its time was over. Ends all that it left running."""
    descriptor = os.pidfd_open(child)
    try:
        is_over = bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if is_over else None
