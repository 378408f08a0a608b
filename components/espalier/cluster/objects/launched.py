"""What a stage's pod can launch instead of running the stage itself: one object of one kind.

`kubernetes.trainer` of the profile names the kind. Its module (`ray_job`, `train_job`) says how
such an object is made and what its status means; `objects.kinds` lists them. Everything else is the
same for all: `cluster.launching` creates, watches and deletes, `cluster.launched_garbage` collects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from espalier.cluster.objects.names import K8sObject, Owner
from espalier.config import KubernetesConfig


class LaunchedStatus(NamedTuple):
    """Status of a launched object, whatever its kind."""

    state: str
    """As a log shows it, such as "Running RUNNING" or "Suspended"."""
    has_ended: bool
    has_succeeded: bool
    message: str = ""
    """Why it is in this state, where the object says so."""

    def line(self) -> str:
        """One line for a log."""
        return f"{self.state}: {self.message}" if self.message else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What a launched object is to run."""

    stage: str
    command: Sequence[str]
    """Fetches, runs and publishes: see `orchestration.step_runner.run_step`."""
    run_id: str
    """Part of the object's name: one object per stage and run."""
    owner: Owner
    """The Job that launches it, or the Workflow of a run of Kubeflow; deleting that deletes it."""
    settings: KubernetesConfig
    environment: Mapping[str, str]
    """Environment variables of the processes that train."""
    processes: int = 1
    """Processes of the stage that train together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedKind:
    """A kind of object that stages can run as."""

    trainer: str
    """The value of `kubernetes.trainer`, which its pods have as ESPALIER_TRAINER."""
    api_version: str
    kind: str
    plural: str
    label: str
    """Value of app.kubernetes.io/name of its objects."""
    operator: str
    """Whose work it is, for messages."""
    stages: frozenset[str]
    """Stages that can be launched; the others always run in their own pods."""
    manifest: Callable[[LaunchOrder], K8sObject]
    """Raises ManifestError where the run's id cannot be part of a name."""
    status: Callable[[K8sObject], LaunchedStatus]
    """Reads an object as the API server has it, its `status` included."""
