"""Kubeflow's pipeline run by kfp local: what its form changes, and a step that fails."""

import json
import subprocess
import sys

from espalier.config import Profile
from tests.integration.commands import espalier, settings

FILLED_FORM = """
import sys

from kfp import local

from espalier.orchestration.pipelines import load_pipeline

if __name__ == "__main__":
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root="root")
    profile = '{"knowledge": {"source": "folder", "path": "docs", "questions": "questions.jsonl"}}'
    fields = {"knowledge_path": "absent", "training_steps": "6", "learning_rate": "2e-4"}
    load_pipeline()(profile=profile, seed=4, **fields)
"""


def test_fields_of_the_form_reach_the_stages(tmp_path):
    """Text fields that are empty change nothing; the run ends where the folder is absent."""
    (tmp_path / "questions.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    (tmp_path / "form.py").write_text(FILLED_FORM)
    done = subprocess.run(
        [sys.executable, "form.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "error: ingest: absent: " in done.stdout + done.stderr
    (settings,) = (tmp_path / "root").glob("*/resolve-profile/settings")
    assert "    training.steps = 6\n" in settings.read_text()
    (noted,) = (tmp_path / "root").glob("*/resolve-profile/executor_output.json")
    resolved = json.loads(json.loads(noted.read_text())["parameterValues"]["Output"])
    expected = Profile(
        seed=4,
        knowledge={"source": "folder", "path": "absent", "questions": "questions.jsonl"},
        training={"steps": 6, "optimizer": {"learning_rate": 2e-4}},
    )
    assert Profile.model_validate(resolved) == expected


def test_a_failing_step_speaks_for_itself(tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    changes = [
        'knowledge.source="folder"',
        f'knowledge.path="{tmp_path}/absent"',
        f'knowledge.questions="{tmp_path}/questions.jsonl"',
        "knowledge.max_cities=0",
    ]
    done = espalier(
        "run",
        "--profile",
        "smoke",
        "--runner",
        "kfp-local",
        "--out",
        "runs/a",
        *settings(*changes),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: ingest:" in done.stderr
    assert f"{tmp_path}/absent" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "a" / "kfp.log").stat().st_size > 0
    assert not (tmp_path / "runs" / "a" / "knowledge").exists()
