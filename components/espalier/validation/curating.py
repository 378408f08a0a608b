"""The rows to validate, and the curation of those that the expectations accept.

Curation never changes dev and held-out tasks: evaluation must not depend on the training data.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from espalier.curation import (
    Contamination,
    Dropped,
    TextRow,
    benchmark_texts,
    dataset_card,
    diversity,
    mixed,
    screened,
)
from espalier.environments import Family
from espalier.records import AgentText, Task, read_agent_texts, read_tasks
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.validation.columns import SplitTask
from espalier.validation.suites import SPLITS

TEXT_FILES = ("agent_texts.jsonl", "negatives.jsonl")
"""Texts for continued pre-training, and negatives for the warm start."""


class ValidationRows(NamedTuple):
    """The rows of a synthetic artifact: tasks of all splits, trajectories, agent texts if any."""

    tasks: list[SplitTask]
    trajectories: list[Trajectory]
    texts: list[AgentText]

    def counts(self) -> dict[str, int]:
        """Number of rows by file."""
        by_split = {split: sum(t.file_split == split for t in self.tasks) for split in SPLITS}
        texts = {"texts": len(self.texts)} if self.texts else {}
        return {**by_split, "trajectories": len(self.trajectories), **texts}


def read_validation_rows(synthetic_dir: Path) -> ValidationRows:
    """Read the files of a synthetic artifact.

    Raises:
        DataError: a line is no task or text.
        ArtifactError: the trajectory file cannot be read.
    """
    tasks = [
        SplitTask(split, task)
        for split in SPLITS
        for task in read_tasks(synthetic_dir / "tasks" / f"{split}.jsonl")
    ]
    texts = [text for name in TEXT_FILES for text in read_agent_texts(synthetic_dir / name)]
    return ValidationRows(tasks, read_trajectories(synthetic_dir / "trajectories.parquet"), texts)


_ATTRIBUTION = "attribution.txt"


class Curated(NamedTuple):
    """The rows that curation kept, and the figures of its report."""

    material: ValidationRows
    report: dict[str, dict[str, object]]


def curate(material: ValidationRows, family: Family[Any]) -> Curated:
    """Drop training questions and texts that fail screening, and mix the texts by their weights.

    The trajectories and texts of a dropped task are dropped as well.

    Raises:
        DataError: a benchmark that the profile names cannot be read.
    """
    config, seed = family.profile.curation, family.profile.seed
    benchmarks = {name: list(benchmark_texts(path)) for name, path in config.benchmarks.items()}
    contamination = Contamination(benchmarks)
    training = [task for split, task in material.tasks if split == "train"]
    questions = [TextRow(task.task_id, task.question) for task in training]
    unfit = screened(questions, config, contamination)
    gone = {dropped.row_id for dropped in unfit}
    tied = [text for text in material.texts if text.task_id not in gone]
    unfit_texts = screened([TextRow(t.text_id, t.words) for t in tied], config, contamination)
    gone_texts = {dropped.row_id for dropped in unfit_texts}
    fit = [text for text in tied if text.text_id not in gone_texts]

    by_kind: dict[str, list[AgentText]] = defaultdict(list)
    for text in fit:
        by_kind[text.kind].append(text)
    kept = mixed(by_kind, config.weights, seed)
    kept_ids = {text.text_id for rows in kept.values() for text in rows}
    left = ValidationRows(
        tasks=[t for t in material.tasks if t.file_split != "train" or t.task.task_id not in gone],
        trajectories=[t for t in material.trajectories if t.task_id not in gone],
        texts=[text for text in fit if text.text_id in kept_ids],
    )
    report = _report(left, (training, unfit), (material.texts, unfit_texts), family)
    report["benchmarks"] = {name: len(texts) for name, texts in benchmarks.items()}
    return Curated(left, report)


def write_curation(
    directory: Path, curated: Curated, knowledge_dir: Path, family: Family[Any]
) -> None:
    """Write curation.json, lineage.jsonl and the dataset card (CARD.md)."""
    text = json.dumps(curated.report, indent=1, ensure_ascii=False)
    (directory / "curation.json").write_text(text + "\n", encoding="utf-8")

    # each row's id, and the ids of the documents that it was made from
    made_from = [(task.task_id, family.documents_of(task)) for _, task in curated.material.tasks]
    made_from += [(text.text_id, text.sources) for text in curated.material.texts]
    with (directory / "lineage.jsonl").open("w", encoding="utf-8") as stream:
        for row_id, sources in made_from:
            stream.write(json.dumps({"row": row_id, "documents": list(sources)}) + "\n")

    path = knowledge_dir / _ATTRIBUTION
    attribution = path.read_text(encoding="utf-8") if path.is_file() else ""
    (directory / "CARD.md").write_text(dataset_card(curated.report, attribution), "utf-8")


def _report(
    left: ValidationRows,
    questions: tuple[Sequence[Task], Sequence[Dropped]],
    texts: tuple[Sequence[AgentText], Sequence[Dropped]],
    family: Family[Any],
) -> dict[str, dict[str, object]]:
    kept = [task for split, task in left.tasks if split == "train"]
    found = [family.report_groups(task) for task in kept]
    return {
        "training_questions": _filtered(len(questions[0]), len(kept), questions[1]),
        "agent_texts": _filtered(len(texts[0]), len(left.texts), texts[1]),
        "kinds_of_text": dict(sorted(Counter(text.kind for text in left.texts).items())),
        **{
            f"by_{name}": dict(sorted(Counter(groups.get(name, "") for groups in found).items()))
            for name in dict.fromkeys(name for groups in found for name in groups)
        },
        "diversity_of_questions": dict(diversity(task.question for task in kept)),
        "diversity_of_texts": dict(diversity(text.words for text in left.texts)),
    }


def _filtered(before: int, after: int, dropped: Sequence[Dropped]) -> dict[str, object]:
    reasons = Counter(row.reason for row in dropped)
    return {
        "before": before,
        "after": after,
        **dict(sorted(reasons.items())),
        "dropped_rows": [row._asdict() for row in dropped],
    }
