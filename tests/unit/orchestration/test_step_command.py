import json
import subprocess
import sys

import pytest

from espalier.chain import CHAIN
from espalier.config import Profile
from espalier.orchestration.step_runner import local_path, step_command

PROFILE = Profile().model_dump_json()
RUN = "s3://espalier/runs/r17"


def _input(command):
    return json.loads(command[command.index("--executor_input") + 1])


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_a_step_reads_and_writes_where_the_chain_wires_it(stage):
    filled = _input(step_command(stage.name, PROFILE, RUN))
    read, written = (
        {name: found["artifacts"][0]["uri"] for name, found in filled[side]["artifacts"].items()}
        for side in ("inputs", "outputs")
    )
    assert read == {folder: f"{RUN}/{folder}" for folder in stage.inputs}
    assert written[stage.output] == f"{RUN}/{stage.output}"
    notes = {"usage", *stage.shows}
    assert written.keys() == {stage.output, *notes}
    assert {name: written[name] for name in notes} == {
        name: f"{RUN}/steps/{stage.name}/{name}" for name in notes
    }
    assert "parameters" not in filled["outputs"], "a Job hands no verdict on: it fails at once"
    assert filled["inputs"]["parameterValues"] == {"profile_json": PROFILE}


def test_an_artifact_lies_where_kfp_looks_for_it():
    from kfp.dsl import Artifact

    uri = f"{RUN}/knowledge"
    assert str(local_path(uri)) == Artifact(uri=uri).path


@pytest.mark.slow
def test_the_command_runs_the_step_that_the_pipeline_carries(tmp_path):
    """A profile that does not parse is the shortest way through a step: it ends in its words."""
    command = [word.replace("/s3/", f"{tmp_path}/") for word in step_command("ingest", "{!", RUN)]
    path = f"{sys.exec_prefix}/bin:/usr/bin:/bin"
    finished = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": path}
    )
    assert finished.returncode == 1
    assert "error: ingest: profile JSON" in finished.stderr
