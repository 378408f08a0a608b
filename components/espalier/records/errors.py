"""The errors that a user can cause, drawn as a tree.

EspalierError             one clear message: what, where, what to do; the CLI prints it and exits 1
+-- ProfileError          a profile that does not parse, or that contradicts itself
+-- ArtifactError         a directory that is missing, half-written, edited or truncated
+-- KnowledgeError        a knowledge source that cannot be read or holds nothing
+-- DataError             rows that break a critical expectation, or tasks that do not parse
|   +-- RefusedRowsError  validation refused the rows, and left a report that says why
+-- PolicyError           a model directory that cannot act in the environment
+-- TrainingError         processes that cannot train together
|   +-- LostWorkerError   one of them is lost; the same command goes on from the last checkpoint
+-- EngineError           an inference server that refuses, or answers what it should not
|   +-- ServerAwayError   it does not answer, or not in time: later the same command may succeed
+-- HungError             what a run waits for has not come by its deadline: a tool, weights, a rank
+-- RegistryError         the tracking server or a promotion refuses
|   +-- RegistryAwayError the tracking server does not answer: later the same command may succeed
+-- ManifestError         a name or setting that no object of a cluster can have
+-- ServingError          an address that cannot be served on, a Deployment that cannot be rolled
+-- ClusterError          the API of a cluster, or of Kubeflow, is away or refuses
+-- StorageError          a place for artifacts that refuses, or cannot be one
    +-- StorageAwayError  it did not answer for minutes: later the same command may succeed
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EspalierError(Exception):
    """Base of every error that a user can fix; its text is the whole message."""


class ProfileError(EspalierError):
    """A profile that does not parse, names an unknown key, or contradicts itself."""


class ArtifactError(EspalierError):
    """An artifact directory that is missing, half-written, edited or truncated."""


class KnowledgeError(EspalierError):
    """A knowledge source that cannot be read, or holds nothing to ask about."""


class DataError(EspalierError):
    """Tasks or trajectories that do not parse, or break a critical expectation."""


class RefusedRowsError(DataError):
    """Validation refused the rows of a run, and published a report instead of them."""

    def __init__(self, message: str, *, faults: Sequence[str], report: Path) -> None:
        """Keep what a step needs to publish the report.

        Args:
            message: faults, place of the report, and what to do.
            faults: one sentence for each reason.
            report: artifact folder with `validation.html` and `validation.json`.
        """
        super().__init__(message)
        self.faults = tuple(faults)
        self.report = report


class PolicyError(EspalierError):
    """A policy directory that cannot be loaded, or cannot act in the environment."""


class TrainingError(EspalierError):
    """Training that cannot continue: a process that does not start or is lost, broken gradients."""


class LostWorkerError(TrainingError):
    """One of the processes that train together is lost; the same command may succeed later."""


class EngineError(EspalierError):
    """An inference server is unreachable, serves another policy, or gives a wrong answer."""


class ServerAwayError(EngineError):
    """It cannot be reached, answers with server errors, or not in time."""


class HungError(EspalierError):
    """Something that a run waits for has not come by its deadline; the message names it."""


class RegistryError(EspalierError):
    """The tracking server refuses a request, or cannot be reached."""


class RegistryAwayError(RegistryError):
    """The tracking server did not answer; the same command may succeed later."""


class ManifestError(EspalierError):
    """A name or setting that no object of a cluster can have."""


class ClusterError(EspalierError):
    """The API of a cluster, or of Kubeflow on it, is unreachable or refuses a request."""


class StorageError(EspalierError):
    """A place for artifacts that refuses a request, or cannot be used as one."""


class StorageAwayError(StorageError):
    """A place for artifacts did not answer for minutes; the same command may succeed later."""


class ServingError(EspalierError):
    """An endpoint that cannot start, or a serving Deployment that cannot be read or changed."""
