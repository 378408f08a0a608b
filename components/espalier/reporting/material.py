"""The rows that a run was trained on: tasks, agent texts and demonstrations of one stage."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from espalier.records import AgentText, Task, read_agent_texts, read_tasks
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.dataset import SPLITS
from espalier.reporting.run_directory import PublishedArtifact, RunDirectory

_TEXT_FILES = ("agent_texts.jsonl", "negatives.jsonl")


@dataclass(frozen=True, slots=True)
class Material:
    """What synthesis made, or what validation accepted of it."""

    tasks: dict[str, list[Task]]
    """Split -> its questions."""
    texts: list[AgentText]
    demonstrations: list[Trajectory]

    def counts(self) -> dict[str, int]:
        """Rows by kind: each split, the demonstrations, each kind of text."""
        kinds = Counter(text.kind for text in self.texts)
        splits = {split: len(tasks) for split, tasks in self.tasks.items()}
        return {**splits, "trajectories": len(self.demonstrations), **kinds}


def material_of(run: RunDirectory, stage: str) -> Material | None:
    """The rows of `synthesize` or `validate`; None where the stage did not run.

    Raises:
        ArtifactError: a file was damaged after publishing.
        DataError: a line that is no task or text.
    """
    artifact = run.artifacts.get(stage)
    if artifact is None:
        return None
    demonstrations = artifact.file("trajectories.parquet")
    return Material(
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
