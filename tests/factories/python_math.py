"""Programs whose results are scripted, or that run in a process of this machine."""

import subprocess
import sys

from espalier.config import Profile
from espalier.sandbox import ExecResult
from espalier_environments.python_math import PythonMath
from tests.factories.records import make_task

TASK = make_task(
    question="12 times 7 ?",
    gold=("84",),
    environment="python_math",
    verifier="math_equivalence",
    kind="story",
)


def ended(stdout=b"", stderr=b"", *, status=0, killed_by=None):
    return ExecResult(
        stdout=stdout,
        stderr=stderr,
        exit_status=None if killed_by else status,
        signal=9 if killed_by else None,
        killed_by=killed_by,
        truncated=False,
        duration_s=0.01,
        cpu_s=0.01,
        max_rss_bytes=1,
    )


class ScriptedRuns:
    """Gives the results of a list, in order; an error of the list is raised.

    `fresh` has what was run in an interpreter of its own.
    """

    def __init__(self, *results):
        self.codes = []
        self.fresh = []
        self.num_ends = 0
        self._results = list(results)

    async def run(self, code):
        self.codes.append(code)
        result = self._results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    async def run_afresh(self, code):
        self.fresh.append(code)
        return await self.run(code)

    def end(self):
        self.num_ends += 1


class ProcessRuns:
    """Runs the scripts of these tests, all of which are ours, in a Python without site packages."""

    async def run(self, code):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=20, check=False
        )
        return ended(done.stdout, done.stderr, status=done.returncode)

    async def run_afresh(self, code):
        return await self.run(code)

    def end(self):
        pass


def environments_over(runs, *, max_turns=4):
    """Mathematics whose programs are `runs`."""
    settings = {"environment": {"name": "python_math"}, "episode": {"max_turns": max_turns}}
    family = PythonMath(Profile.model_validate(settings))
    return family.environments_by(family.tools(), lambda _task: family.rules_over(runs, runs))
