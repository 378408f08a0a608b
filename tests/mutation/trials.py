"""Runs the quick tests of a package against one mutant after another."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mutation.mutants import Mutant, mutate

ROOT = Path(__file__).parents[2]
COMPONENTS = ROOT / "components"
QUICK = ("-m", "not slow", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0")
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
        self._components = folder / "components"
        self._own = folder / "own"
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
        shutil.copytree(COMPONENTS, self._components, ignore=ignored)

    def try_mutant(self, mutant: Mutant, tests: Sequence[Path], *, limit_s: float) -> Outcome:
        """Run the tests with the mutant in place of its file, which is put back after."""
        path = self._components / mutant.path
        source = path.read_text(encoding="utf-8")
        self._write(path, mutate(source, mutant))
        try:
            return self.run(tests, limit_s=limit_s)
        finally:
            self._write(path, source)

    def run(self, tests: Sequence[Path], *, limit_s: float) -> Outcome:
        """Run the quick ones of these tests until the first that fails."""
        began_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *QUICK, *map(str, tests)],
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_this_process,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", time.monotonic() - began_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the tests left running as well
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - began_s
        if process.returncode == 0:
            return Outcome("survived", seconds)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return Outcome("killed", seconds, failed[1] if failed else said.strip()[-200:])

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self._components),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._own / "hypothesis"),
        }

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Python tells a stale bytecode file by second and size, which a mutant may share
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def nearest_first(paths: Sequence[str], mutant: Mutant) -> list[Path]:
    """The test files under these paths; those that name the mutated module come first."""
    folders = [ROOT / path for path in paths]
    if absent := [str(folder) for folder in folders if not folder.exists()]:
        raise FileNotFoundError(f"no tests at {', '.join(absent)}: see tests/mutation/__main__.py")
    files = [
        file
        for folder in folders
        for file in (sorted(folder.rglob("test_*.py")) if folder.is_dir() else [folder])
    ]
    module = _folded(Path(mutant.path).stem)
    return sorted(files, key=lambda file: module not in _folded(file.read_text(encoding="utf-8")))


def _folded(text: str) -> str:
    return text.replace("_", "").lower()


def _limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
