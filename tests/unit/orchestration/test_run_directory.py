import json
import os
import subprocess
import sys

import pytest

from espalier.orchestration.run_directory import RunState, Timings, locked_run
from espalier.records import ArtifactError
from espalier.usage import Usage


def test_a_second_run_in_one_folder_is_refused(tmp_path):
    refused = pytest.raises(ArtifactError, match=f"process {os.getpid()}")
    with locked_run(tmp_path), refused, locked_run(tmp_path):
        pass


def test_the_folder_is_free_again_when_its_run_was_killed(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path;"
        "from espalier.orchestration.run_directory import locked_run;"
        "lock = locked_run(Path(sys.argv[1])); lock.__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    with locked_run(tmp_path):
        pass


def test_state_survives_but_for_another_profile_or_damage(tmp_path):
    state = RunState.load(tmp_path)
    state.follow_profile("one")
    state.attempts["train"] = "abc"
    state.tracking_run_id = "run"
    state.save(tmp_path)
    state = RunState.load(tmp_path)
    state.follow_profile("one")
    assert (state.attempts, state.tracking_run_id) == ({"train": "abc"}, "run")
    state.follow_profile("other")
    assert state.tracking_run_id is None
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"run\.json"):
        RunState.load(tmp_path)


def test_a_damaged_table_of_timings_counts_as_empty(tmp_path):
    Timings(tmp_path).record("train", Usage(2.0, 10.0))
    with Timings(tmp_path).measuring("train"):
        pass
    table = json.loads((tmp_path / "timings.json").read_text())
    assert table["train"]["seconds"] >= 2.0
    (tmp_path / "timings.json").write_text('{"train": 3}')
    Timings(tmp_path).record("ingest", Usage(1.0, 5.0))
    assert list(json.loads((tmp_path / "timings.json").read_text())) == ["ingest"]
