"""Objects that a stage's pod can launch to run the stage elsewhere: order, kind and status.

`kubernetes.trainer` of the profile names the kind. The kind's module (`ray_job`, `train_job`) makes
the object and reads its status; `objects.kinds` lists the kinds. The rest is the same for all:
`cluster.launching` creates, watches and deletes objects, `cluster.launched_garbage` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from espalier.cluster.objects.names import K8sObject, Owner
from espalier.config import KubernetesConfig


class LaunchedStatus(NamedTuple):
    """Status of a launched object of any kind."""

    state: str
    """State for a log line, such as "Running RUNNING" or "Suspended"."""
    has_ended: bool
    has_succeeded: bool
    message: str = ""
    """Reason of the state; empty where the object gives none."""

    def line(self) -> str:
        """State and message as a log line."""
        return f"{self.state}: {self.message}" if self.message else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """Command, run and owner of an object to launch."""

    stage: str
    command: Sequence[str]
    """Command of the stage's first process, which fetches, runs and publishes."""
    run_id: str
    """Part of the object's name: one object per stage and run."""
    owner: Owner
    """The Job that launches it, or the Workflow of a Kubeflow run; deleted together with it."""
    settings: KubernetesConfig
    environment: Mapping[str, str]
    """Environment variables of the processes that train."""
    processes: int = 1
    """Number of processes of the stage that train together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedKind:
    """A kind of object that stages can run as."""

    trainer: str
    """Value of `kubernetes.trainer`, and of ESPALIER_TRAINER in the object's pods."""
    api_version: str
    kind: str
    plural: str
    label: str
    """Value of the label app.kubernetes.io/name of the objects."""
    operator: str
    """Name of the operator for messages."""
    stages: frozenset[str]
    """Names of stages that can be launched; the others run in their own pods."""
    manifest: Callable[[LaunchOrder], K8sObject]
    """Makes the object; raises ManifestError where the run's id cannot be part of a name."""
    status: Callable[[K8sObject], LaunchedStatus]
    """Reads the status of an object from the API server."""
