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
from espalier.config import Profile, PythonMathConfig, ValidationConfig, external_inputs
from espalier.environments import parser_of
from espalier.rollout.trajectory import write_trajectories
from espalier.tasks import write_agent_texts, write_tasks
from espalier.validation.curating import curate, write_curation
from espalier.validation.judge import judge
from espalier.validation.material import TEXT_FILES, Material, read_material
from espalier.validation.report import describe, write_report
from espalier.validation.suites import SPLITS, task_suite, text_suite, trajectory_suite
from espalier.validation.task_columns import EntitySplits, task_columns
from espalier.validation.text_columns import HiddenNames, text_columns
from espalier.validation.trajectory_columns import trajectory_columns
from espalier.validation.verdict import Verdict

FAILED_NAME = "validation_failed"
"""Where the report of a stopped run stands, beside the artifact that was not published."""


class Inputs(NamedTuple):
    """Artifacts that the stage reads."""

    knowledge: Path
    synthetic: Path


def run(profile: Profile, inputs: Inputs, output_dir: Path, tracker: Tracker) -> Manifest:
    """Judge the synthetic artifact and publish its accepted rows, in their order.

    Raises:
        DataError: a critical expectation failed, more rows than `validation.max_dropped_share`
            break a row-wise one, or nothing is left of a file. The report stands in
            `validation_failed/` beside `output_dir`, and nothing else is published.
    """
    started = time.perf_counter()
    provenance = _provenance(profile, inputs)
    entities = _entities(profile, inputs.knowledge)
    material = read_material(inputs.synthetic)
    with tracker.progress("expectations", total=2 + bool(material.texts)) as progress:
        verdicts = [_judge_tasks(material, entities, profile.validation)]
        progress.advance()
        verdicts.append(_judge_trajectories(material, profile))
        progress.advance()
        if material.texts:
            verdicts.append(_judge_texts(material, HiddenNames.load(inputs.knowledge)))
            progress.advance()
    accepted = _accepted(material, *verdicts)
    curated = curate(accepted, profile.curation, profile.seed) if profile.curation.enabled else None
    accepted = curated.material if curated else accepted
    limit = profile.validation.max_dropped_share
    faults = [fault for verdict in verdicts for fault in verdict.faults(limit)]
    faults += _emptied(material, accepted)
    report = describe(verdicts, faults, accepted.counts(), entities.hub_kinds)
    failed_dir = output_dir.with_name(FAILED_NAME)
    if faults:
        with publishing(failed_dir, provenance) as draft:
            write_report(draft.path, report)
        raise DataError(_stop_message(faults, failed_dir))
    with publishing(output_dir, provenance) as draft:
        _write(draft, accepted, inputs.synthetic)
        if curated:
            write_curation(draft.path, curated, inputs.knowledge)
        write_report(draft.path, report)
        _write_measurements(draft.path, time.perf_counter() - started)
    shutil.rmtree(failed_dir, ignore_errors=True)
    _tell(tracker, material, accepted, output_dir)
    return draft.published


def _provenance(profile: Profile, inputs: Inputs) -> Provenance:
    contents = {name: open_artifact(path).content for name, path in inputs._asdict().items()}
    return Provenance(
        producer="validate",
        config_digest=profile.stage_digest("validate"),
        seed=profile.seed,
        inputs=contents | external_inputs(profile, "validate"),
    )


def _judge_tasks(material: Material, entities: EntitySplits, config: ValidationConfig) -> Verdict:
    findings = judge(task_columns(material.tasks, entities), task_suite(config))
    return Verdict("tasks", [task.task_id for _, task in material.tasks], findings)


def _entities(profile: Profile, knowledge: Path) -> EntitySplits:
    """Whose names must not be shared; mathematics has none."""
    if isinstance(profile.environment, PythonMathConfig):
        return EntitySplits({}, frozenset())
    return EntitySplits.load(knowledge)


def _judge_trajectories(material: Material, profile: Profile) -> Verdict:
    train_ids = {task.task_id for split, task in material.tasks if split == "train"}
    frame = trajectory_columns(material.trajectories, train_ids, parser_of(profile))
    findings = judge(frame, trajectory_suite(profile.validation))
    return Verdict("trajectories", [t.task_id for t in material.trajectories], findings)


def _judge_texts(material: Material, hidden: HiddenNames) -> Verdict:
    train_ids = {task.task_id for split, task in material.tasks if split == "train"}
    findings = judge(text_columns(material.texts, train_ids, hidden), text_suite())
    return Verdict("texts", [text.text_id for text in material.texts], findings)


def _accepted(
    material: Material, tasks: Verdict, trajectories: Verdict, texts: Verdict | None = None
) -> Material:
    """What no row-wise expectation drops; a trajectory or text goes with its task."""
    kept_tasks = [task for row, task in enumerate(material.tasks) if row not in tasks.dropped]
    kept_ids = {task.task_id for _, task in kept_tasks}
    kept_trajectories = [
        trajectory
        for row, trajectory in enumerate(material.trajectories)
        if row not in trajectories.dropped and trajectory.task_id in kept_ids
    ]
    kept_texts = [
        text
        for row, text in enumerate(material.texts)
        if texts and row not in texts.dropped and (not text.task_id or text.task_id in kept_ids)
    ]
    return Material(kept_tasks, kept_trajectories, kept_texts)


def _emptied(material: Material, accepted: Material) -> list[str]:
    before, after = material.counts(), accepted.counts()
    return [
        f"{name}: not one of {before[name]} rows is left" for name in before if not after.get(name)
    ]


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
    negatives = [text for text in accepted.texts if text.kind == "negative"]
    read_on = [text for text in accepted.texts if text.kind != "negative"]
    for name, texts in zip(TEXT_FILES, (read_on, negatives), strict=True):
        if texts:
            draft.rows[Path(name).stem] = write_agent_texts(draft.path / name, texts)
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
