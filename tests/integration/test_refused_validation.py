"""Rows that validation refuses, in Kubeflow's pipeline on this machine."""

import json
import re
from pathlib import Path

import pytest

from tests.integration.commands import espalier, settings

REFUSING = settings("validation.max_question_words=1", "validation.max_dropped_share=0.01")
"""No question has one word."""
pytestmark = pytest.mark.usefixtures("local_sandboxes")  # its teacher's programs run in them


@pytest.mark.slow
def test_a_pipeline_shows_the_report_and_ends(tmp_path):
    done = espalier(
        "run", "--profile", "arithmetic-smoke", "--runner", "kfp-local", "--out", "run",
        *REFUSING, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: validate:" in done.stderr
    assert "question_length" in done.stderr
    assert "Traceback" not in done.stderr
    (task_dir,) = (tmp_path / "run" / ".kfp").glob("*/validate")
    page = Path(re.search(r"Report: (\S+)\. ", done.stderr)[1])
    assert page == task_dir / "page"
    assert "question_length" in page.read_text()
    faults = json.loads((task_dir / "verdict").read_text())
    assert faults
    assert all(fault in done.stderr for fault in faults)
    assert not list((tmp_path / "run" / ".kfp").glob("*/prepare-policy"))
    assert "INFO]: Skipping registering" not in (tmp_path / "run" / "kfp.log").read_text()
