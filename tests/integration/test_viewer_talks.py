"""The viewer's process for a checkpoint, with a real model, its tools and its tasks."""

import json
import subprocess
import sys

import torch

from espalier.policy.loading import load_policy
from espalier.records import read_tasks, work_dir
from espalier.training.checkpoint import Checkpoint, CheckpointStore
from espalier.training.parallel import whole_weights
from tests.factories.sums_run import write_sums_run
from tests.factories.viewed_run import Viewer, write_run
from tests.unit.ui.test_talk import add_checkpoint, settled


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_plays_a_task_and_leaves_the_run(tmp_path):
    run = tmp_path / "runs" / "sums"
    write_sums_run(run)
    before = files_of(run)
    task = read_tasks(run / "accepted" / "tasks" / "heldout.jsonl")[0]
    viewer = Viewer([run], tmp_path)
    (checkpoint,) = viewer.get("runs/sums/checkpoints")["checkpoints"]
    body = {"run": "sums", "checkpoint": checkpoint["name"], "task": task.task_id}
    assert viewer.ask("/api/chat", "POST", json=body).status_code == 200
    found = settled(viewer)
    answer = found["said"][-1]["answer"]
    assert found["state"] == "ready", found
    assert answer["messages"][0]["content"] == task.prompt[-1].content
    assert answer["gold"] == list(task.verifier.gold)
    assert "outcome" in answer["terms"]
    assert any(span["kind"] == "sampling" for span in answer["spans"])
    viewer.app.talks.end()
    viewer.catalog.close()
    assert files_of(run) == before


def test_the_newest_checkpoint_of_training_plays(tmp_path):
    run = tmp_path / "sums"
    write_sums_run(run)
    (run / "trained_policy").rename(run / "warm_policy")
    policy = load_policy(run / "warm_policy" / "policy")
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.zero_()
    store = CheckpointStore(work_dir(run / "trained_policy"), "run")
    store.save(Checkpoint(step=7, model=whole_weights(policy.model), optimizer={}))
    viewer = Viewer([run], tmp_path)
    names = [one["name"] for one in viewer.get("runs/sums/checkpoints")["checkpoints"]]
    before = files_of(run)
    said = {}
    for name in names:
        body = {"run": "sums", "checkpoint": name, "question": "what is 1 + 1 ?"}
        assert viewer.ask("/api/chat", "POST", json=body).status_code == 200
        found = settled(viewer)
        said[found["step"]] = [one["content"] for one in found["said"][-1]["answer"]["messages"]]
    viewer.app.talks.end()
    viewer.catalog.close()
    assert names == ["warm_policy", "trained_policy/latest"]
    assert said[7] != said[None], "other weights, other words"
    assert files_of(run) == before


def test_the_process_ends_with_its_input(tmp_path):
    run = tmp_path / "sums"
    write_sums_run(run)
    command = [sys.executable, "-m", "espalier_ui.talking", run, run / "trained_policy" / "policy"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=240, check=False)
    assert json.loads(done.stdout) == {"ready": True, "step": None}
    assert done.returncode == 0


def test_a_checkpoint_that_cannot_be_loaded_says_why(tmp_path):
    write_run(tmp_path / "run", steps=1)
    add_checkpoint(tmp_path / "run")
    viewer = Viewer([tmp_path / "run"], tmp_path)
    body = {"run": "run", "checkpoint": "trained_policy", "question": "x"}
    assert viewer.ask("/api/chat", "POST", json=body).status_code == 200
    found = settled(viewer)
    assert found["state"] == "ended"
    assert found["problem"] == found["said"][-1]["answer"]["error"]
    assert "profile" in found["problem"] or "artifact" in found["problem"]
    viewer.catalog.close()
