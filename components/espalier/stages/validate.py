"""validate: publishes the rows that meet all expectations, or stops the run with a report."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.chain import opened, provenance
from espalier.config import Profile
from espalier.dialects import syntax_of
from espalier.environments import Family, family_of
from espalier.environments.mixins import Teacher, entity_splits_of
from espalier.records import (
    Draft,
    Manifest,
    RefusedRowsError,
    Tracker,
    publishing,
    write_agent_texts,
    write_tasks,
)
from espalier.records.knowledge import EntitySplits
from espalier.records.trajectory import write_trajectories
from espalier.usage import used_since
from espalier.validation.columns import HiddenNames, task_columns, text_columns, trajectory_columns
from espalier.validation.curating import (
    TEXT_FILES,
    ValidationRows,
    curate,
    read_validation_rows,
    write_curation,
)
from espalier.validation.judge import SuiteVerdict, judge
from espalier.validation.report import describe, write_report
from espalier.validation.suites import SPLITS, task_suite, text_suite, trajectory_suite

FAILED_NAME = "validation_failed"
"""Directory of a stopped run's report, next to the artifact that was not published."""


def run(
    profile: Profile,
    inputs: Mapping[str, Path],
    output_dir: Path,
    tracker: Tracker,
    *,
    external_digests: Mapping[str, str] | None = None,
) -> Manifest:
    """Judge the synthetic artifact and publish its accepted rows in their order.

    Raises:
        RefusedRowsError: a critical expectation failed, more rows than
            `validation.max_dropped_share` fail a row-wise one, or all rows of a file are dropped.
            Only the report is published, in `validation_failed/` next to `output_dir`.
    """
    started = time.perf_counter()
    origin = provenance("validate", profile, opened(inputs), external_digests)
    family, knowledge = family_of(profile), inputs["knowledge"]
    entities = entity_splits_of(family, knowledge)
    material = read_validation_rows(inputs["synthetic"])
    demonstrated = isinstance(family, Teacher)
    total = 1 + demonstrated + bool(material.texts)
    with tracker.progress("expectations", total=total) as progress:
        verdicts = [_judge_tasks(material, entities, family)]
        progress.advance()
        if demonstrated:
            verdicts.append(_judge_trajectories(material, family))
            progress.advance()
        if material.texts:
            verdicts.append(_judge_texts(material, HiddenNames.load(knowledge), family))
            progress.advance()
    accepted = _accepted(material, *verdicts)
    curated = curate(accepted, family) if profile.curation.enabled else None
    accepted = curated.material if curated else accepted
    limit = profile.validation.max_dropped_share
    faults = [fault for verdict in verdicts for fault in verdict.faults(limit)]
    faults += _empty_files(material, accepted, demonstrated=demonstrated)
    report = describe(verdicts, faults, accepted.counts(), entities.hub_kinds)
    failed_dir = output_dir.with_name(FAILED_NAME)
    if faults:
        with publishing(failed_dir, origin) as draft:
            write_report(draft.path, report)
        raise RefusedRowsError(
            stop_message(faults, str(failed_dir / "validation.html")),
            faults=faults,
            report=failed_dir,
        )
    with publishing(output_dir, origin) as draft:
        _write(draft, accepted, inputs["synthetic"])
        _write_funnel(draft, inputs["synthetic"], verdicts)
        if curated:
            write_curation(draft.path, curated, knowledge, family)
        write_report(draft.path, report)
        measured = json.dumps(used_since(started))
        (draft.path / "run.json").write_text(measured + "\n", encoding="utf-8")
    shutil.rmtree(failed_dir, ignore_errors=True)
    _report_figures(tracker, material, accepted, output_dir)
    return draft.published


def _judge_tasks(
    material: ValidationRows, entities: EntitySplits, family: Family[Any]
) -> SuiteVerdict:
    frame = task_columns(material.tasks, entities, family)
    findings = judge(frame, task_suite(family.profile.validation))
    return SuiteVerdict("tasks", [task.task_id for _, task in material.tasks], findings)


def _judge_trajectories(material: ValidationRows, family: Family[Any]) -> SuiteVerdict:
    train = {task.task_id: task for split, task in material.tasks if split == "train"}
    frame = trajectory_columns(material.trajectories, train, family)
    findings = judge(frame, trajectory_suite(family.profile.validation))
    return SuiteVerdict("trajectories", [t.task_id for t in material.trajectories], findings)


def _judge_texts(
    material: ValidationRows, hidden: HiddenNames, family: Family[Any]
) -> SuiteVerdict:
    train_ids = {task.task_id for split, task in material.tasks if split == "train"}
    syntax = syntax_of(family.profile.policy.model_dialect)
    specs = [tool.spec for tool in family.built_tools]
    frame = text_columns(material.texts, train_ids, hidden, lambda text: syntax.parse(text, specs))
    return SuiteVerdict(
        "texts", [text.text_id for text in material.texts], judge(frame, text_suite())
    )


def _accepted(
    material: ValidationRows,
    tasks: SuiteVerdict,
    trajectories: SuiteVerdict | None = None,
    texts: SuiteVerdict | None = None,
) -> ValidationRows:
    """Rows that no row-wise expectation drops; a dropped task drops its trajectories and texts."""
    kept_tasks = [task for row, task in enumerate(material.tasks) if row not in tasks.dropped]
    kept_ids = {task.task_id for _, task in kept_tasks}
    kept_trajectories = [
        trajectory
        for row, trajectory in enumerate(material.trajectories)
        if trajectories and row not in trajectories.dropped and trajectory.task_id in kept_ids
    ]
    kept_texts = [
        text
        for row, text in enumerate(material.texts)
        if texts and row not in texts.dropped and (not text.task_id or text.task_id in kept_ids)
    ]
    return ValidationRows(kept_tasks, kept_trajectories, kept_texts)


def _empty_files(
    material: ValidationRows, accepted: ValidationRows, *, demonstrated: bool
) -> list[str]:
    before, after = material.counts(), accepted.counts()
    return [
        f"{name}: not one of {before[name]} rows is left"
        for name in before
        if not after.get(name) and (demonstrated or name != "trajectories")
    ]


def stop_message(faults: Sequence[str], report: str) -> str:
    """Error message with the faults and the report's path."""
    lines = "\n".join(f"  {fault}" for fault in faults)
    return (
        f"validation stopped the run:\n{lines}\n"
        f"Report: {report}. Correct the source or the profile's [synthesis], and run the same "
        "command again."
    )


def _write(draft: Draft, accepted: ValidationRows, synthetic_dir: Path) -> None:
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


def _write_funnel(draft: Draft, synthetic_dir: Path, verdicts: Sequence[SuiteVerdict]) -> None:
    """Write the funnel of `synthesize` with counts of dropped rows, by their first fault, added."""
    path = synthetic_dir / "funnel.json"
    if not path.is_file():
        return
    content = json.loads(path.read_bytes())
    for verdict in verdicts:
        if dropped := Counter(faults[0] for faults in verdict.dropped.values()):
            content.setdefault("funnel", {})[f"validation.{verdict.suite}"] = dict(dropped)
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (draft.path / path.name).write_text(text + "\n", encoding="utf-8")


def _report_figures(
    tracker: Tracker, material: ValidationRows, accepted: ValidationRows, output_dir: Path
) -> None:
    before, after = material.counts(), accepted.counts()
    tracker.metrics({f"accepted_{name}": float(count) for name, count in after.items()})
    tracker.artifact(output_dir / "validation.html")
    kept = ", ".join(f"{name} {after[name]}/{before[name]}" for name in after)
    tracker.note(f"accepted {kept}")
