"""The `validate` stage: accept rows, or stop with a report."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from espalier.artifacts import (
    DataError,
    Draft,
    Manifest,
    Provenance,
    Tracker,
    open_artifact,
    publishing,
)
from espalier.config import Profile, ValidationConfig
from espalier.rollout.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.tasks import read_tasks, write_tasks
from espalier.validation.judge import judge
from espalier.validation.report import describe, write_report
from espalier.validation.suites import SPLITS, task_suite, trajectory_suite
from espalier.validation.task_columns import EntitySplits, SplitTask, task_columns
from espalier.validation.trajectory_columns import trajectory_columns
from espalier.validation.verdict import Verdict

FAILED_NAME = "validation_failed"
"""Where the report of a stopped run stands, beside the artifact that was not published."""


class Inputs(NamedTuple):
    """Artifacts that the stage reads."""

    knowledge: Path
    synthetic: Path


class Material(NamedTuple):
    """Tasks of every split and the teacher's trajectories."""

    tasks: list[SplitTask]
    trajectories: list[Trajectory]

    def counts(self) -> dict[str, int]:
        """Rows by file."""
        by_split = {split: sum(t.file_split == split for t in self.tasks) for split in SPLITS}
        return {**by_split, "trajectories": len(self.trajectories)}


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Judge the synthetic artifact and publish its accepted rows, in their order.

    Raises:
        DataError: a critical expectation failed, more rows than `validation.max_dropped_share`
            break a row-wise one, or nothing is left of a file. The report stands in
            `validation_failed/` beside `output_dir`, and nothing else is published.
    """
    started = time.perf_counter()
    provenance = Provenance(
        producer="validate",
        config_digest=profile.stage_digest("validate"),
        seed=profile.seed,
        inputs={
            "knowledge": open_artifact(inputs.knowledge).content,
            "synthetic": open_artifact(inputs.synthetic).content,
        },
    )
    entities = EntitySplits.load(inputs.knowledge)
    material = _read(inputs.synthetic)
    with tracker.progress("expectations", total=2) as progress:
        tasks = _judge_tasks(material, entities, profile.validation)
        progress.advance()
        trajectories = _judge_trajectories(material, profile.validation)
        progress.advance()
    accepted = _accepted(material, tasks, trajectories)
    limit = profile.validation.max_dropped_share
    faults = [*tasks.faults(limit), *trajectories.faults(limit), *_emptied(material, accepted)]
    report = describe((tasks, trajectories), faults, accepted.counts(), entities.hub_kinds)
    failed_dir = output_dir.with_name(FAILED_NAME)
    if faults:
        with publishing(failed_dir, provenance) as draft:
            write_report(draft.path, report)
        raise DataError(_stop_message(faults, failed_dir))
    with publishing(output_dir, provenance) as draft:
        _write(draft, accepted, inputs.synthetic)
        write_report(draft.path, report)
        _write_measurements(draft.path, time.perf_counter() - started)
    shutil.rmtree(failed_dir, ignore_errors=True)
    _tell(tracker, material, accepted, output_dir)
    return draft.published


def _read(synthetic_dir: Path) -> Material:
    tasks = [
        SplitTask(split, task)
        for split in SPLITS
        for task in read_tasks(synthetic_dir / "tasks" / f"{split}.jsonl")
    ]
    return Material(tasks, read_trajectories(synthetic_dir / "trajectories.parquet"))


def _judge_tasks(material: Material, entities: EntitySplits, config: ValidationConfig) -> Verdict:
    findings = judge(task_columns(material.tasks, entities), task_suite(config))
    return Verdict("tasks", [task.task_id for _, task in material.tasks], findings)


def _judge_trajectories(material: Material, config: ValidationConfig) -> Verdict:
    train_ids = {task.task_id for split, task in material.tasks if split == "train"}
    frame = trajectory_columns(material.trajectories, train_ids)
    findings = judge(frame, trajectory_suite(config))
    return Verdict("trajectories", [t.task_id for t in material.trajectories], findings)


def _accepted(material: Material, tasks: Verdict, trajectories: Verdict) -> Material:
    """What no row-wise expectation drops; a trajectory goes with its task."""
    kept_tasks = [task for row, task in enumerate(material.tasks) if row not in tasks.dropped]
    kept_ids = {task.task_id for _, task in kept_tasks}
    kept_trajectories = [
        trajectory
        for row, trajectory in enumerate(material.trajectories)
        if row not in trajectories.dropped and trajectory.task_id in kept_ids
    ]
    return Material(kept_tasks, kept_trajectories)


def _emptied(material: Material, accepted: Material) -> list[str]:
    before, after = material.counts(), accepted.counts()
    return [f"{name}: not one of {before[name]} rows is left" for name in after if not after[name]]


def _stop_message(faults: Sequence[str], failed_dir: Path) -> str:
    lines = "\n".join(f"  {fault}" for fault in faults)
    return (
        f"validation stopped the run:\n{lines}\n"
        f"Report: {failed_dir / 'validation.html'}. Mend the source or the profile's synthesis "
        "section, and run the same command again."
    )


def _write(draft: Draft, accepted: Material, synthetic_dir: Path) -> None:
    (draft.path / "tasks").mkdir()
    for split in SPLITS:
        kept = (task for file_split, task in accepted.tasks if file_split == split)
        draft.rows[split] = write_tasks(draft.path / "tasks" / f"{split}.jsonl", kept)
    path = draft.path / "trajectories.parquet"
    draft.rows["trajectories"] = write_trajectories(path, accepted.trajectories)
    funnel = synthetic_dir / "funnel.json"
    if funnel.is_file():
        shutil.copyfile(funnel, draft.path / funnel.name)


def _write_measurements(directory: Path, seconds: float) -> None:
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = {"seconds": round(seconds, 3), "peak_rss_mb": round(peak_kb / 1024, 1)}
    (directory / "run.json").write_text(json.dumps(measured) + "\n", encoding="utf-8")


def _tell(tracker: Tracker, material: Material, accepted: Material, output_dir: Path) -> None:
    before, after = material.counts(), accepted.counts()
    tracker.metrics({f"accepted_{name}": float(count) for name, count in after.items()})
    tracker.artifact(output_dir / "validation.html")
    kept = ", ".join(f"{name} {after[name]}/{before[name]}" for name in after)
    tracker.note(f"accepted {kept}")
