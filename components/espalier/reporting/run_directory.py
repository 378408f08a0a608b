"""The artifact folders of one run, by the stage that made them; a stage may be missing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from espalier.records import (
    AgentText,
    ArtifactError,
    Manifest,
    Task,
    file_digest,
    read_agent_texts,
    read_manifest,
    read_tasks,
    stale_artifacts,
)
from espalier.records.artifact import MANIFEST_NAME
from espalier.records.trajectory import Trajectory, read_trajectories

_PROFILE_NAME = "profile.json"
_FAILED_VALIDATION = "validation_failed"
SPLITS = ("train", "dev", "heldout")


@dataclass(frozen=True, slots=True)
class PublishedArtifact:
    """An artifact folder; each file is checked against the manifest when it is read."""

    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path | None:
        """The checked path of a payload file; None if the artifact has no such file.

        Raises:
            ArtifactError: the file is missing, or its bytes are not those that were published.
        """
        if name not in self.manifest.files:
            return None
        path = self.path / name
        if not path.is_file() or file_digest(path) != self.manifest.files[name]:
            raise ArtifactError(
                f"{path}: its bytes are not those that were published (missing, truncated or "
                f"edited). Delete {self.path}, and repeat the `espalier run` that made it"
            )
        return path

    def json(self, name: str) -> Any:  # noqa: ANN401 (whatever the stage's JSON holds)
        """The parsed JSON of a payload file; None if there is no such file."""
        path = self.file(name)
        if path is None:
            return None
        try:
            return json.loads(path.read_bytes())
        except ValueError as error:
            raise ArtifactError(f"{path}: does not parse as JSON ({error})") from error

    def table(self, name: str) -> pd.DataFrame | None:
        """A parquet payload file as a table; None if there is no such file."""
        path = self.file(name)
        if path is None:
            return None
        try:
            return pq.read_table(path).to_pandas()
        except (pa.ArrowInvalid, OSError) as error:
            raise ArtifactError(f"{path}: not a readable parquet file ({error})") from error

    def text(self, name: str) -> str:
        """The text of a payload file; empty if there is no such file."""
        path = self.file(name)
        return path.read_text(encoding="utf-8", errors="replace") if path else ""

    def measured(self) -> dict[str, Any]:
        """Seconds, memory and throughput that the stage measured (run.json)."""
        found = self.json("run.json")
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The profile and the published artifacts of a run."""

    path: Path
    profile: dict[str, Any]
    artifacts: dict[str, PublishedArtifact]
    """Stage name (the manifest's producer) -> its artifact."""
    usage: dict[str, dict[str, float]]
    """Stage name -> seconds and peak memory over all attempts, if the runner measured them."""
    failed_validation: PublishedArtifact | None = None
    """Report of a failed validation, which publishes no artifact."""

    def json(self, stage: str, name: str) -> Any:  # noqa: ANN401 (whatever the stage's JSON holds)
        """The parsed JSON of a stage's payload file; None if the stage did not run."""
        artifact = self.artifacts.get(stage)
        return artifact.json(name) if artifact else None

    def measured(self, stage: str) -> dict[str, Any]:
        """Figures of a stage's run.json, overridden by the runner's over all attempts."""
        artifact = self.artifacts.get(stage)
        return {**(artifact.measured() if artifact else {}), **self.usage.get(stage, {})}

    def table(self, stage: str, name: str) -> pd.DataFrame | None:
        """A stage's parquet payload file; None if the stage did not run."""
        artifact = self.artifacts.get(stage)
        return artifact.table(name) if artifact else None


def open_run(run_dir: Path) -> RunDirectory:
    """Find the artifacts below `run_dir`; folders with a dotted name are drafts and do not count.

    Nor do artifacts of former settings, whose stage has not run again.

    Raises:
        ArtifactError: there is no such folder, it is not one of a run, or a manifest or the profile
            does not parse.
    """
    if not run_dir.is_dir():
        raise ArtifactError(f"{run_dir}: no such run. Point at a folder that `espalier run` made.")
    folders = sorted(path.parent for path in run_dir.glob(f"[!.]*/{MANIFEST_NAME}"))
    if not folders and not (run_dir / _PROFILE_NAME).is_file():
        raise ArtifactError(
            f"{run_dir}: not the folder of a run (no {_PROFILE_NAME} and no artifact in it). Give "
            "the folder that `espalier run --out` filled."
        )
    found = [PublishedArtifact(folder, read_manifest(folder)) for folder in folders]
    stale = stale_artifacts({artifact.path.name: artifact.manifest for artifact in found})
    found = [artifact for artifact in found if artifact.path.name not in stale]
    failed = [artifact for artifact in found if artifact.path.name == _FAILED_VALIDATION]
    artifacts = {a.manifest.producer: a for a in found if a not in failed}
    return RunDirectory(
        path=run_dir,
        profile=_json_object(run_dir / _PROFILE_NAME),
        artifacts=artifacts,
        usage=_usage(run_dir / "timings.json"),
        failed_validation=failed[0] if failed else None,
    )


def _json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ArtifactError(f"{path}: does not parse as JSON ({error})") from error
    if not isinstance(found, dict):
        raise ArtifactError(
            f"{path}: is not a JSON object. Repeat the `espalier run` that wrote it"
        )
    return found


def _usage(path: Path) -> dict[str, dict[str, float]]:
    """Numbers by stage, as the runner writes them; they are in no manifest, so no digest exists."""
    found = _json_object(path)
    for stage, figures in found.items():
        if not isinstance(figures, dict) or not all(
            isinstance(value, int | float) for value in figures.values()
        ):
            raise ArtifactError(
                f"{path}: {stage} is not an object of numbers. Delete the file; the next run of "
                "the same command writes it again."
            )
    return found


_TEXT_FILES = ("agent_texts.jsonl", "negatives.jsonl")


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Rows that synthesis made or validation accepted, of every split, negatives included."""

    tasks: dict[str, list[Task]]
    """Split -> its questions."""
    texts: list[AgentText]
    demonstrations: list[Trajectory]

    def counts(self) -> dict[str, int]:
        """Rows by kind: each split, the demonstrations, each kind of text."""
        kinds = Counter(text.kind for text in self.texts)
        splits = {split: len(tasks) for split, tasks in self.tasks.items()}
        return {**splits, "trajectories": len(self.demonstrations), **kinds}


def read_rows(run: RunDirectory, stage: str) -> TrainingRows | None:
    """The rows of `synthesize` or `validate`; None if the stage did not run.

    Raises:
        ArtifactError: a file was damaged after publishing.
        DataError: a line is no task or text.
    """
    artifact = run.artifacts.get(stage)
    if artifact is None:
        return None
    demonstrations = artifact.file("trajectories.parquet")
    return TrainingRows(
        tasks={split: _tasks(artifact, split) for split in SPLITS},
        texts=[text for name in _TEXT_FILES for text in _texts(artifact, name)],
        demonstrations=read_trajectories(demonstrations) if demonstrations else [],
    )


def _tasks(artifact: PublishedArtifact, split: str) -> list[Task]:
    path = artifact.file(f"tasks/{split}.jsonl")
    return read_tasks(path) if path else []


def _texts(artifact: PublishedArtifact, name: str) -> list[AgentText]:
    path = artifact.file(name)
    return read_agent_texts(path) if path else []
