"""What judges programs, in a bare interpreter in place of a sandbox."""

import asyncio
import sys

import pytest

from espalier.sandbox import ExecResult, Limits
from espalier_environments.code.judging import judge
from tests.benchmarks.hacks.code import SOLUTION, TASKS


class BareInterpreter:
    """Runs scripts with the standard library alone, as a sandbox without packages does."""

    limits = Limits()

    def __init__(self, folder):
        self.folder = folder

    async def run_python(self, code, *, stdin=b"", timeout_s=None, limits=None):
        pipe = asyncio.subprocess.PIPE
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", code),
            cwd=self.folder, stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        stdout, stderr = await running.communicate(stdin)
        return ExecResult(
            stdout=stdout, stderr=stderr, exit_status=running.returncode, signal=None,
            killed_by=None, truncated=False, duration_s=0.0, cpu_s=0.0, max_rss_bytes=0,
        )  # fmt: skip


@pytest.mark.parametrize("tests", TASKS, ids=["cases", "checks"])
def test_judging_needs_only_the_standard_library(tests, tmp_path):
    found = asyncio.run(
        judge(BareInterpreter(tmp_path), tests, tests.hidden, SOLUTION, timeout_s=5)
    )
    assert found.report.all_passed
