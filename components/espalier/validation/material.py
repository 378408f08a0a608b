"""What validation judges: tasks, trajectories and agent texts, as synthesis left them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from espalier.records import AgentText, read_agent_texts, read_tasks
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.validation.suites import SPLITS
from espalier.validation.task_columns import SplitTask

TEXT_FILES = ("agent_texts.jsonl", "negatives.jsonl")
"""What continued pre-training reads, and what the warm start does beside its demonstrations."""


class Material(NamedTuple):
    """Tasks of every split, the teacher's trajectories, and the agent texts where there are any."""

    tasks: list[SplitTask]
    trajectories: list[Trajectory]
    texts: list[AgentText]

    def counts(self) -> dict[str, int]:
        """Rows by file."""
        by_split = {split: sum(t.file_split == split for t in self.tasks) for split in SPLITS}
        texts = {"texts": len(self.texts)} if self.texts else {}
        return {**by_split, "trajectories": len(self.trajectories), **texts}


def read_material(synthetic_dir: Path) -> Material:
    """Read the files of a synthetic artifact.

    Raises:
        DataError: a line that is no task or text.
        ArtifactError: a trajectory file that cannot be read.
    """
    tasks = [
        SplitTask(split, task)
        for split in SPLITS
        for task in read_tasks(synthetic_dir / "tasks" / f"{split}.jsonl")
    ]
    texts = [text for name in TEXT_FILES for text in read_agent_texts(synthetic_dir / name)]
    return Material(tasks, read_trajectories(synthetic_dir / "trajectories.parquet"), texts)
