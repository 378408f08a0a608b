import json

import pytest
from kfp.dsl import Artifact

from espalier.chain import CHAIN
from espalier.config import Profile
from espalier.orchestration.step_runner import local_path, step_command

PROFILE = Profile().model_dump_json()
RUN = "s3://espalier/runs/r17"


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_a_step_reads_and_writes_where_the_chain_wires_it(stage):
    command = step_command(stage.name, PROFILE, RUN)
    filled = json.loads(command[command.index("--executor_input") + 1])
    read, written = (
        {name: found["artifacts"][0]["uri"] for name, found in filled[side]["artifacts"].items()}
        for side in ("inputs", "outputs")
    )
    assert read == {folder: f"{RUN}/{folder}" for folder in stage.inputs}
    assert written[stage.output] == f"{RUN}/{stage.output}"
    notes = {stage.shows} if stage.shows else set()
    assert written.keys() == {stage.output, *notes}
    assert {name: written[name] for name in notes} == {
        name: f"{RUN}/steps/{stage.name}/{name}" for name in notes
    }
    assert "parameters" not in filled["outputs"], "a Job hands no verdict on: it fails at once"
    assert filled["inputs"]["parameterValues"] == {"profile_json": PROFILE}


def test_an_artifact_lies_where_kfp_looks_for_it():
    uri = f"{RUN}/knowledge"
    assert str(local_path(uri)) == Artifact(uri=uri).path
