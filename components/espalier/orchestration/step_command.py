"""The container command of a step with its input filled in: what Kubeflow's launcher would run.

With it a step runs wherever its image does, on the very code that the compiled pipeline carries.
Whoever runs it puts the input artifacts where KFP looks for them (s3://bucket/key at
/s3/bucket/key) and takes the outputs away again. Kubeflow's launcher does; `espalier step` does
too, so `container_command` needs nothing around it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from espalier.cluster.objects.pods import S3_MOUNT

_S3_SCHEME = "s3://"
_EXECUTOR_INPUT = "{{$}}"
"""What Kubeflow replaces by the executor input, as JSON."""
_FIGURES = "usage"
"""The output that is a step's figures and no artifact of the run."""


def container_command(stage: str, profile_json: str, run_uri: str) -> tuple[str, ...]:
    """Command and arguments of a container that fetches, runs and publishes: see `step_runner`.

    Args:
        stage: name of the stage.
        profile_json: the resolved profile.
        run_uri: of the run, see `step_command`; the pod's environment says where S3 is.
    """
    return ("espalier", "step", stage, "--profile", profile_json, "--run", run_uri)


def step_command(stage: str, profile_json: str, run_uri: str) -> tuple[str, ...]:
    """Command and arguments of `stage`'s container under Kubeflow.

    Args:
        stage: name of the stage, which is its component's as well.
        profile_json: the resolved profile.
        run_uri: s3://bucket/prefix of the run, or its folder; every artifact is a folder below it,
            named after the output that makes it, and what KFP notes about a step lies in
            steps/<stage>.
    """
    compiled = _compiled(stage)
    (executor,) = compiled["deploymentSpec"]["executors"].values()
    (component,) = compiled["components"].values()
    filled = json.dumps(_executor_input(component, stage, profile_json, run_uri))
    words = [*executor["container"]["command"], *executor["container"]["args"]]
    return tuple(filled if word == _EXECUTOR_INPUT else word for word in words)


def local_path(uri: str) -> PurePosixPath:
    """Where a step finds the artifact at `uri`."""
    if not uri.startswith(_S3_SCHEME):
        return PurePosixPath(uri)
    return PurePosixPath(S3_MOUNT) / uri.removeprefix(_S3_SCHEME)


def _compiled(stage: str) -> dict[str, Any]:
    """The component of `stage` as a pipeline of its own, in KFP's intermediate representation."""
    from google.protobuf.json_format import MessageToDict

    from espalier.steps.components import stage_component

    return MessageToDict(stage_component(stage).pipeline_spec)


def _executor_input(
    component: Mapping[str, Any], stage: str, profile_json: str, run_uri: str
) -> dict[str, Any]:
    """KFP's ExecutorInput (pipeline_spec.proto) as JSON."""
    inputs = component["inputDefinitions"].get("artifacts", {})
    outputs = component["outputDefinitions"]["artifacts"]
    notes = f"{run_uri}/steps/{stage}"
    return {
        "inputs": {
            "parameterValues": {"profile_json": profile_json},
            "artifacts": {
                name: _artifact(name, inputs[name], f"{run_uri}/{name}") for name in sorted(inputs)
            },
        },
        "outputs": {
            "artifacts": {
                name: _artifact(
                    name, outputs[name], f"{notes if name == _FIGURES else run_uri}/{name}"
                )
                for name in sorted(outputs)
            },
            "outputFile": str(local_path(f"{notes}/executor_output.json")),
        },
    }


def _artifact(name: str, definition: Mapping[str, Any], uri: str) -> dict[str, Any]:
    artifact = {
        "name": name,
        "type": definition["artifactType"],
        "uri": uri,
        "metadata": {},
    }
    return {"artifacts": [artifact]}
