"""Some thousand cases of what `python -m tests.fuzz` runs for as long as it is told."""

import asyncio
import shutil

import pytest

from tests.fuzz.__main__ import TARGETS
from tests.fuzz.campaign import fuzz

CASES = {
    "runs": 4000,
    "calls": 4000,
    "endpoint": 2000,
    "recording": 1500,
    "frames": 2000,
    "sandboxd": 150,
    "judgements": 4000,
    "traces": 2000,
    "transcripts": 4000,
    "services": 1500,
    "shops": 300,
    "patches": 1500,
    "pages": 1500,
    "functions": 1500,
    "programs": 600,
    "queries": 1500,
    "puzzles": 150,
    "mcp": 500,
}


@pytest.mark.parametrize("name", TARGETS)
def test_no_case_violates_anything(name):
    if name == "sandboxd" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    target, said = TARGETS[name](), []
    report = asyncio.run(
        fuzz(target, seed=0, cases=CASES[name], seconds=600, say=said.append, max_failures=1)
    )
    assert not report.failures, "\n".join([*said, *(f.reason for f in report.failures)])
    assert report.cases == CASES[name]
