import errno
import json
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from espalier.config import KnowledgeConfig, Profile, ValidationConfig
from espalier.orchestration.runs import run_in_process
from espalier.records import ArtifactError, DataError, open_artifact, work_dir
from tests.unit.orchestration.small_chain import CHAIN, Stages, execute


@pytest.fixture
def stages():
    return Stages()


def contents(manifests):
    return {folder: manifest.content for folder, manifest in manifests.items()}


def timings(run_dir):
    return json.loads((run_dir / "timings.json").read_text())


def test_stages_run_in_order_and_publish_into_their_folders(tmp_path, stages):
    manifests = execute(tmp_path)
    assert stages.calls == ["ingest", "synthesize", "validate"]
    for link in CHAIN:
        assert open_artifact(tmp_path / link.output) == manifests[link.output]
    measured = timings(tmp_path)
    assert list(measured) == stages.calls
    assert all(figures["peak_rss_mb"] > 1 for figures in measured.values())


def test_only_stages_with_other_sections_or_inputs_run_again(tmp_path, stages):
    first, said = execute(tmp_path), []
    stages.calls.clear()
    assert contents(execute(tmp_path, said=said)) == contents(first)
    assert stages.calls == []
    assert [line.partition(":")[0] for line in said] == ["ingest", "synthesize", "validate"]
    shutil.rmtree(tmp_path / "synthetic")
    execute(tmp_path)
    assert stages.calls == ["synthesize"]
    stages.calls.clear()
    execute(tmp_path, Profile(validation=ValidationConfig(max_turns=5)))
    assert stages.calls == ["validate"]
    stages.calls.clear()
    execute(tmp_path, Profile(seed=7))
    assert stages.calls == ["ingest", "synthesize", "validate"]


def test_a_failed_stage_leaves_its_predecessors_and_publishes_nothing(tmp_path, stages):
    stages.faults["synthesize"] = DataError("no question left")
    with pytest.raises(DataError, match="no question left"):
        execute(tmp_path)
    assert (tmp_path / "knowledge").is_dir()
    assert not (tmp_path / "synthetic").exists()
    stages.faults.clear()
    stages.calls.clear()
    execute(tmp_path)
    assert stages.calls == ["synthesize", "validate"]


@pytest.mark.parametrize("file", ["knowledge/rows.txt", "synthetic/manifest.json"])
def test_a_truncated_file_stops_the_run_and_is_named(tmp_path, stages, file):
    execute(tmp_path)
    (tmp_path / file).write_text((tmp_path / file).read_text()[:-20])
    with pytest.raises(ArtifactError, match=file):
        execute(tmp_path)


def test_a_folder_that_no_stage_published_stops_the_run(tmp_path, stages):
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="synthetic"):
        execute(tmp_path)
    assert (tmp_path / "synthetic" / "notes.txt").read_text() == "mine"


def test_a_full_disk_is_one_clear_error(tmp_path, stages):
    stages.faults["ingest"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ArtifactError, match=r"ingest: .*disk"):
        execute(tmp_path)


def test_an_equal_attempt_keeps_checkpoints_and_adds_seconds(tmp_path, stages):
    stages.faults["ingest"] = DataError("killed here")
    stages.waits_s["ingest"] = 0.05
    for _ in range(2):
        with pytest.raises(DataError):
            execute(tmp_path)
    attempts = work_dir(tmp_path / "knowledge") / "attempts"
    assert attempts.read_text().splitlines() == ["attempt", "attempt"]
    assert timings(tmp_path)["ingest"]["seconds"] >= 0.1


def test_checkpoints_and_seconds_of_another_attempt_are_forgotten(tmp_path, stages):
    stages.faults["ingest"] = DataError("killed here")
    stages.waits_s["ingest"] = 0.3
    with pytest.raises(DataError):
        execute(tmp_path)
    stages.waits_s.clear()
    with pytest.raises(DataError):
        execute(tmp_path, Profile(seed=1))
    attempts = work_dir(tmp_path / "knowledge") / "attempts"
    assert attempts.read_text().splitlines() == ["attempt"]
    assert timings(tmp_path)["ingest"]["seconds"] < 0.3


@pytest.mark.parametrize(
    "other", [Profile(seed=1), Profile(knowledge=KnowledgeConfig(max_cities=5))]
)
def test_checkpoints_of_other_data_are_named_and_not_resumed(tmp_path, stages, other):
    """A resumed loader would skip the first batches of the other data (NeMo-RL#2519)."""
    stages.faults["ingest"] = DataError("killed here")
    said = []
    for profile in (None, None, other, other):
        with pytest.raises(DataError):
            execute(tmp_path, profile, said=said)
    (line,) = said
    assert line.startswith("ingest: begins anew")
    assert len(set(re.findall(r"sha256:([0-9a-f]{12})", line))) == 2
    attempts = work_dir(tmp_path / "knowledge") / "attempts"
    assert attempts.read_text().splitlines() == ["attempt", "attempt"]


KILLED_RUN = """
import sys
from pathlib import Path
from tests.unit.orchestration.small_chain import Stages, execute

Stages().waits_s["synthesize"] = 60.0
execute(Path(sys.argv[1]))
"""


def test_a_killed_run_resumes_to_the_same_artifacts(tmp_path, stages):
    undisturbed = contents(execute(tmp_path / "undisturbed"))
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", KILLED_RUN, str(killed)])
    checkpoint = work_dir(killed / "synthetic") / "attempts"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stages.calls.clear()
    assert contents(execute(killed)) == undisturbed
    assert stages.calls == ["synthesize", "validate"]


@pytest.mark.parametrize("name", ["knowledge", "trained_policy"])
def test_a_run_over_a_folder_of_ones_own_writes_nothing(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    with pytest.raises(ArtifactError, match=f"{name}: .*--out"):
        run_in_process(Profile(), tmp_path, print)
    assert [path.name for path in tmp_path.rglob("*")] == [name, "thesis.txt"]
