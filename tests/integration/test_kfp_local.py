import json
import os
import subprocess
import sys

import pytest

from espalier.artifacts import open_artifact
from espalier.orchestration.chain import CHAIN

TINY = [
    "policy.prestage.steps=4",
    "warm_start.steps=6",
    "curriculum.enabled=false",
    "training.steps=1",
    "evaluation.sampled_questions=8",
]
"""The smoke profile with even fewer steps: the path counts here, not what is learned."""


def espalier(*arguments, cwd):
    script = "from espalier.cli import main; main()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def run(runner, out, cwd):
    changes = [part for change in TINY for part in ("--set", change)]
    done = espalier(
        "run", "--profile", "smoke", "--runner", runner, "--out", out, "--json", *changes, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_both_runners_make_the_same_artifacts(tmp_path):
    in_process = run("in-process", "runs/one", tmp_path)
    kfp_local = run("kfp-local", "runs/two", tmp_path)
    assert kfp_local["digests"] == in_process["digests"]
    assert set(kfp_local["digests"]) == {link.folder for link in CHAIN}
    assert set(kfp_local["stages"]) == set(in_process["stages"])
    assert all(figures["seconds"] > 0 for figures in kfp_local["stages"].values())
    for link in CHAIN:
        open_artifact(tmp_path / "runs" / "two" / link.folder)
    assert not (tmp_path / "runs" / "two" / ".kfp").exists()


def test_a_failing_step_speaks_for_itself(tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    changes = [
        'knowledge.source="folder"',
        f'knowledge.path="{tmp_path}/absent"',
        f'knowledge.questions="{tmp_path}/questions.jsonl"',
        "knowledge.max_cities=0",
    ]
    arguments = [part for change in changes for part in ("--set", change)]
    done = espalier(
        "run", "--profile", "smoke", "--runner", "kfp-local", "--out", "runs/a", *arguments,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error: ingest:" in done.stderr
    assert f"{tmp_path}/absent" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "runs" / "a" / "kfp.log").stat().st_size > 0
    assert not (tmp_path / "runs" / "a" / "knowledge").exists()
