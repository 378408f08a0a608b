"""Kubeflow's pipeline run by kfp local: what its form changes."""

import json
import subprocess
import sys

from espalier.config import Profile

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
    assert "training.steps = 6" in settings.read_text()
    (noted,) = (tmp_path / "root").glob("*/resolve-profile/executor_output.json")
    resolved = json.loads(json.loads(noted.read_text())["parameterValues"]["Output"])
    expected = Profile(
        seed=4,
        knowledge={"source": "folder", "path": "absent", "questions": "questions.jsonl"},
        training={"steps": 6, "optimizer": {"learning_rate": 2e-4}},
    )
    assert Profile.model_validate(resolved) == expected
