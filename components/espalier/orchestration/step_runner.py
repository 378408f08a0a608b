"""Runs one step with remote artifacts: fetches inputs, runs its command, publishes the output.

The pod of a plain Job runs this. The step itself is a separate process that runs the code of the
compiled pipeline. A step whose output is published and current does nothing, so repeating a pod
that was lost after publishing costs nothing.

`step_command` is the component's container command with its input filled in, as Kubeflow's launcher
runs it. It reads input artifacts where KFP puts them (s3://bucket/key at /s3/bucket/key); the
caller fetches and publishes them, as Kubeflow's launcher and `run_step` do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from espalier.chain import STAGES, Stage
from espalier.cluster.launching import StepTerminated, launch
from espalier.cluster.objects.kinds import launched_kind
from espalier.cluster.objects.launched import LaunchedKind
from espalier.cluster.objects.pods import S3_MOUNT, WORKSPACE_MOUNT
from espalier.cluster.signals import on_signals
from espalier.config import Profile
from espalier.determinism import TRAINER_VARIABLE
from espalier.records import (
    MANIFEST_NAME,
    EspalierError,
    Manifest,
    StorageError,
    read_manifest,
)
from espalier.steps.kept import CHECKPOINTS_VARIABLE, forget_checkpoint
from espalier.steps.refusing import write_termination_message
from espalier.storage import ArtifactLocation, joined, open_location
from espalier.training.nodes import KEY_VARIABLE, NODES_VARIABLE, Nodes

_S3_SCHEME = "s3://"
_EXECUTOR_INPUT = "{{$}}"
"""Placeholder that Kubeflow replaces by the executor input, as JSON."""


def container_command(stage: str, profile: Profile, run_uri: str) -> tuple[str, ...]:
    """Command and arguments of a container that calls `run_step`.

    Args:
        stage: name of the stage.
        profile: the resolved profile.
        run_uri: s3://bucket/prefix of the run, or its folder; the pod's environment has the
            address of S3.
    """
    has_claim = profile.kubernetes.workspace_claim is not None
    workspace = ("--workspace", WORKSPACE_MOUNT) if has_claim else ()
    profile_json = profile.model_dump_json()
    return ("espalier", "step", stage, "--profile", profile_json, "--run", run_uri, *workspace)


def step_command(stage: str, profile_json: str, run_uri: str) -> tuple[str, ...]:
    """Command and arguments of `stage`'s container under Kubeflow.

    Args:
        stage: name of the stage and of its component.
        profile_json: the resolved profile.
        run_uri: s3://bucket/prefix of the run, or its folder; every artifact is a folder below it
            with the output's name, and KFP's records of a step are in steps/<stage>.
    """
    from google.protobuf.json_format import MessageToDict

    from espalier.steps.components import stage_component

    # the stage's component as a pipeline in KFP's intermediate representation
    compiled = MessageToDict(stage_component(stage).pipeline_spec)
    (executor,) = compiled["deploymentSpec"]["executors"].values()
    (component,) = compiled["components"].values()
    filled = json.dumps(_executor_input(component, stage, profile_json, run_uri))
    words = [*executor["container"]["command"], *executor["container"]["args"]]
    return tuple(filled if word == _EXECUTOR_INPUT else word for word in words)


def local_path(uri: str) -> PurePosixPath:
    """Path at which a step finds the artifact at `uri`."""
    if not uri.startswith(_S3_SCHEME):
        return PurePosixPath(uri)
    return PurePosixPath(S3_MOUNT) / uri.removeprefix(_S3_SCHEME)


def _executor_input(
    component: Mapping[str, Any], stage: str, profile_json: str, run_uri: str
) -> dict[str, Any]:
    """KFP's ExecutorInput (pipeline_spec.proto) as JSON."""
    inputs = component["inputDefinitions"].get("artifacts", {})
    outputs = component["outputDefinitions"]["artifacts"]
    # figures and pages are no artifacts of the run, so they go to `notes`
    notes, made = f"{run_uri}/steps/{stage}", STAGES[stage].output
    return {
        "inputs": {
            "parameterValues": {"profile_json": profile_json},
            "artifacts": {
                name: _artifact(name, inputs[name], f"{run_uri}/{name}") for name in sorted(inputs)
            },
        },
        "outputs": {
            "artifacts": {
                name: _artifact(name, outputs[name], f"{run_uri if name == made else notes}/{name}")
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


_NOTES = "executor_output.json"
"""File of KFP's executor with a step's figures and the URIs of its outputs."""
_LAUNCHED_FAILED = 3
"""Exit code, retryable, when the launched object failed: a node may have died."""
_SERVE_NODE = (sys.executable, "-m", "espalier.training.nodes")
_LEAVES_WITHIN_S = 15.0
_LOOKS_EVERY_S = 5.0
"""How often a TrainJob's other nodes look whether the first one has published."""


class StepFailed(EspalierError):
    """The step's process failed, and printed the reason itself."""

    def __init__(self, stage: str, exit_code: int) -> None:
        super().__init__(f"{stage}: ended with exit code {exit_code}; see its output above")
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """A step to run, with the locations of its artifacts."""

    stage: str
    profile: Profile
    run_uri: str
    """s3://bucket/prefix or a folder; artifacts lie below it under their names."""
    workspace: Path
    """Folder for artifacts of S3 while the step runs: s3://bucket/key at WORKSPACE/bucket/key. The
    next attempt continues with the files that a killed step leaves there."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name -> URI of inputs that are not below `run_uri`."""
    output: str | None = None
    """URI of the output; None: below `run_uri`."""

    @property
    def link(self) -> Stage:
        """The stage in the chain.

        Raises:
            EspalierError: there is no such stage, or it has no such input.
        """
        if self.stage not in STAGES:
            raise EspalierError(f"{self.stage}: no such stage; there are {', '.join(STAGES)}")
        stage = STAGES[self.stage]
        if strange := sorted(self.inputs.keys() - set(stage.inputs)):
            raise EspalierError(
                f"{self.stage} has no input {strange[0]}; it reads "
                f"{', '.join(stage.inputs) or 'none'}"
            )
        return stage

    def command(self) -> tuple[str, ...]:
        """The container's command for this order."""
        inputs: list[str] = []
        for name in sorted(self.inputs):
            inputs += ["--input", f"{name}={self.inputs[name]}"]
        output = [] if self.output is None else ["--output", self.output]
        return (*container_command(self.stage, self.profile, self.run_uri), *inputs, *output)

    @property
    def checkpoints(self) -> str | None:
        """URI of the newest checkpoint while the step runs; None where the run is not in S3."""
        if not self.run_uri.startswith(_S3_SCHEME):
            return None
        return joined(self.run_uri, "steps", self.stage, "checkpoint")

    @property
    def processes(self) -> int:
        """Number of processes of the step; only training has several."""
        return self.profile.training.processes if self.stage == "train" else 1

    @property
    def folder(self) -> Path:
        """The run's folder on this machine."""
        local = local_path(self.run_uri)
        if str(local) == self.run_uri:
            return Path(self.run_uri).resolve()
        return self.workspace / local.relative_to(S3_MOUNT)


def run_step(order: StepOrder, say: Callable[[str], None]) -> Manifest:
    """Run one step, unless its output is published, current and complete.

    Lost files of a current output are restored, from the workspace or by running the step.

    Args:
        order: the step.
        say: takes a line for each artifact that is fetched, kept or published.

    Returns:
        The manifest of the step's output.

    Raises:
        StepFailed: the step failed, or was ended by a signal (exit code 128 + number).
        StorageAwayError: S3 does not answer; the same command may succeed later.
        EspalierError: no such stage, a missing input, or a location that cannot be written.
    """

    def ended(number: int) -> NoReturn:
        raise StepFailed(order.stage, 128 + number)

    with on_signals(ended):
        return _run(order, say)


def _run(order: StepOrder, say: Callable[[str], None]) -> Manifest:
    link = order.link
    sources = {
        folder: open_location(order.inputs.get(folder, joined(order.run_uri, folder)), os.environ)
        for folder in link.inputs
    }
    target = open_location(order.output or joined(order.run_uri, link.output), os.environ)
    kind = launched_kind(order.stage, order.profile.kubernetes)
    runs_here = kind is None or bool(os.environ.get(TRAINER_VARIABLE))
    if runs_here and _nodes_of(order).index > 0:
        return _serve_node(order, target, sources, say)
    published = _published(target, order, sources)
    if published is not None:
        lost = target.lost_files(published)
        if not lost:
            say(f"{order.stage}: kept {target.uri}  sha256:{published.content[:12]}")
            return published
        others = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        say(f"{order.stage}: {target.uri} has lost {lost[0]}{others}")
        # the workspace may still have the artifact; publishing checks its files
        kept = order.folder / link.output
        if (kept / MANIFEST_NAME).is_file() and read_manifest(kept) == published:
            say(f"{order.stage}: publishes them again from {kept}")
            return target.publish(kept)
    if kind is not None and not runs_here:
        _launch(kind, order, say)
        return _made(target, kind)
    for name, place in sources.items():
        say(f"{order.stage}: reads {place.uri}")
        place.fetch(order.folder / name)
    checkpoints = order.checkpoints
    _run_command(
        order.stage,
        step_command(order.stage, order.profile.model_dump_json(), str(order.folder)),
        _nodes_key(order) | ({} if checkpoints is None else {CHECKPOINTS_VARIABLE: checkpoints}),
    )
    manifest = target.publish(order.folder / link.output)
    if checkpoints is not None:
        forget_checkpoint(checkpoints, os.environ, lambda line: say(f"{order.stage}: {line}"))
    notes = order.folder / "steps" / order.stage / _NOTES
    open_location(joined(order.run_uri, "steps", order.stage), os.environ).write(
        _NOTES, notes.read_bytes()
    )
    say(f"{order.stage}: wrote {target.uri}  sha256:{manifest.content[:12]}")
    return manifest


def _launch(kind: LaunchedKind, order: StepOrder, say: Callable[[str], None]) -> None:
    """Launch an object of `kind` that runs the same command, fetching and publishing included.

    Raises:
        StepFailed: the object failed, or this process got a signal.
    """
    try:
        status = launch(
            kind,
            order.stage,
            order.command(),
            processes=order.processes,
            settings=order.profile.kubernetes,
            environment=os.environ,
            log=say,
        )
    except StepTerminated as reason:
        raise StepFailed(order.stage, 128 + reason.number) from reason
    if not status.has_succeeded:
        # its pods write their own messages, and a lost pod none
        write_termination_message(f"error: {order.stage}: {kind.kind}: {status.line()}")
        raise StepFailed(order.stage, _LAUNCHED_FAILED)


def _nodes_of(order: StepOrder) -> Nodes:
    """The nodes of this pod's TrainJob.

    Raises:
        EspalierError: it has more or fewer than the stage uses by its profile.
    """
    nodes, used = Nodes.of(os.environ), order.profile.kubernetes.pods_of(order.stage)
    if nodes.count != used:
        raise EspalierError(
            f"{order.stage}: this TrainJob has {nodes.count} nodes ({NODES_VARIABLE}), and the "
            f"stage uses {used}; set its numNodes to that, or for train kubernetes.nodes to "
            f"{nodes.count}"
        )
    return nodes


def _serve_node(
    order: StepOrder,
    target: ArtifactLocation,
    sources: Mapping[str, ArtifactLocation],
    say: Callable[[str], None],
) -> Manifest:
    """Run this node's part of training until the first node has published.

    Raises:
        StepFailed: this process got a signal.
    """
    fault = ""
    with _running(order.stage, _SERVE_NODE, _nodes_key(order)) as process:
        while process.poll() is None:
            try:
                manifest = _published(target, order, sources)
                if manifest is not None and not target.lost_files(manifest):
                    return manifest
            except StorageError as error:  # training needs S3 at its end, and this node never
                if str(error) != fault:
                    fault = str(error)
                    say(f"{order.stage}: does not see whether it is published: {fault}")
            time.sleep(_LOOKS_EVERY_S)
    raise StepFailed(order.stage, _exit_code(process))


def _nodes_key(order: StepOrder) -> dict[str, str]:
    """Where the nodes of training have the key of their attempt; empty for one node."""
    if order.profile.kubernetes.pods_of(order.stage) == 1:
        return {}
    return {KEY_VARIABLE: str(order.folder / "steps" / order.stage / "nodes.key")}


def _made(target: ArtifactLocation, kind: LaunchedKind) -> Manifest:
    manifest = target.manifest()
    if manifest is None:
        raise EspalierError(
            f"{target.uri}: the {kind.kind} succeeded, but has published nothing there"
        )
    return manifest


def _published(
    target: ArtifactLocation, order: StepOrder, sources: Mapping[str, ArtifactLocation]
) -> Manifest | None:
    """The output, if one was made with these settings from these inputs."""
    published = target.manifest()
    if published is None:
        return None
    given = order.link.external_inputs(order.profile)
    for name, place in sources.items():
        source = place.manifest()
        if source is None:
            return None
        given[name] = source.content
    return published if order.link.is_current(published, order.profile, given) else None


def _run_command(stage: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run the step as `_running` does.

    Raises:
        StepFailed: its exit code is not 0.
    """
    with _running(stage, command, variables) as process:
        process.wait()
    if code := _exit_code(process):
        raise StepFailed(stage, code)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Exit code as a shell has it: 128 + N after signal N."""
    status = process.returncode
    return 128 - status if status < 0 else status


@contextmanager
def _running(
    stage: str, command: Sequence[str], variables: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, which ends with the block.

    Signals to this process are passed on to it.

    Args:
        stage: name for messages.
        command: the command.
        variables: environment variables besides those of this process.

    Raises:
        StepFailed: a signal came when the command had just ended.
    """
    # first in PATH, so that a shell finds this interpreter, which has espalier
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables, "PATH": path},
        stdout=sys.stderr.fileno(),
        start_new_session=True,
    )

    def pass_on(number: int) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # it has just ended
            raise StepFailed(stage, 128 + number) from None

    # a pod's signals reach only its first process, which is this one and not the step's
    with on_signals(pass_on):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(_LEAVES_WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
