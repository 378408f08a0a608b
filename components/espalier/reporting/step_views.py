"""What Kubeflow's UI shows of a finished step: figures, an HTML page, a text in Markdown.

`Stage.shows` of the chain lists the views of a stage; this module makes them from the artifact that
the stage published. The UI shows a page in a frame, and only the first page of a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espalier.records import ArtifactError, read_manifest
from espalier.reporting import charts
from espalier.reporting.comparison import POLICIES, compare
from espalier.reporting.formats import visible, words
from espalier.reporting.histories import phase_tables
from espalier.reporting.notices import notices_table
from espalier.reporting.pages import page_environment, page_style
from espalier.reporting.plots import (
    GRPO_CURVES,
    PRESTAGE_CURVES,
    PRETRAINING_CURVES,
    WARM_START_CURVES,
    Curve,
)
from espalier.reporting.run_directory import PublishedArtifact, RunDirectory
from espalier.reporting.tables import measured, numbers
from espalier.reporting.transcripts import newest_transcripts

_CURVES: Mapping[str, tuple[Callable[[RunDirectory], charts.Chart | None], Sequence[Curve]]] = {
    "prepare_policy": (charts.prestage_chart, PRESTAGE_CURVES),
    "continue_pretraining": (charts.pretraining_chart, PRETRAINING_CURVES),
    "warm_start": (charts.warm_start_chart, WARM_START_CURVES),
    "train": (charts.grpo_chart, GRPO_CURVES),
}
_NOTHING = {
    "prepare_policy": "The profile gives a model: nothing was trained in this step.",
    "continue_pretraining": "The profile has no continued pre-training: the base policy was "
    "passed on unchanged.",
}
"""Text for a stage that trained nothing."""
_KEPT_BY = "dev_em"
"""The figure by which the best weights are chosen."""
_COST = ("seconds", "peak_rss_mb")
"""Figures of run.json that every step has: its cost."""


def opened_artifact(folder: Path, profile: Mapping[str, Any]) -> RunDirectory:
    """A run that consists of one published artifact.

    Args:
        folder: artifact of a stage, or report of a failed validation.
        profile: profile of the run, as in its JSON.

    Raises:
        ArtifactError: the folder is no artifact, or its manifest is unreadable.
    """
    artifact = PublishedArtifact(folder, read_manifest(folder))
    return RunDirectory(folder.parent, dict(profile), {artifact.manifest.producer: artifact}, {})


def step_figures(stage: str, run: RunDirectory) -> dict[str, float]:
    """Figures of a training stage (the last measured ones) or of `evaluate`, all finite.

    Kubeflow keeps them as metadata of the stage's output. Other stages have none.

    Rates are 0-1; `_low` and `_high` are the ends of an interval.

    Raises:
        ArtifactError: a file of the artifact is damaged.
    """
    found = _evaluated(run) if stage == "evaluate" else _trained(stage, run)
    return {name: value for name, value in found if math.isfinite(value)}


def step_page(stage: str, run: RunDirectory) -> str:
    """The HTML page of a stage, without external resources.

    Raises:
        ArtifactError: a file of the artifact is missing or damaged.
    """
    if stage == "validate":
        page = run.artifacts[stage].text("validation.html")
        if not page:
            raise ArtifactError(f"{run.artifacts[stage].path}: no validation.html in it")
        return page
    chart, _ = _CURVES.get(stage, (None, ()))
    results = run.json("evaluate", "results.json") or {}
    source, transcripts = newest_transcripts(run) if results else ("", ())
    environment = page_environment()
    return environment.get_template("step.html.jinja").render(
        style=page_style(environment),
        title=words(stage),
        profile=run.profile,
        curves=chart(run) if chart else None,
        figures=step_figures(stage, run),
        notices=notices_table(run) if stage == "train" else None,
        phases=phase_tables(run) if stage == "train" else (),
        comparison=compare(results) if results else None,
        exact_match=charts.exact_match_chart(results) if results else None,
        transcripts=transcripts,
        transcript_source=source,
        nothing=_NOTHING.get(stage, "This step has nothing to show."),
    )


def step_summary(run: RunDirectory) -> str:
    """The text of `register`, in Markdown.

    Raises:
        ArtifactError: a file of the artifact is missing or damaged.
    """
    return "\n".join(_registration(run)) + "\n"


def _trained(stage: str, run: RunDirectory) -> Iterator[tuple[str, float]]:
    chart, curves = _CURVES.get(stage, (None, ()))
    if chart is None:
        return
    history = run.table(stage, "history.parquet")
    if history is None or chart(run) is None:
        return
    yield "steps", float(numbers(history, "step").max())
    for curve in curves:
        if curve.column not in history:
            continue
        values = measured(history, "step", curve.column).y
        if len(values):
            yield curve.column, float(values[-1])
            if curve.column == _KEPT_BY:
                yield f"best_{curve.column}", float(values.max())
    for name, value in run.measured(stage).items():
        if isinstance(value, int | float) and name not in _COST:
            yield name, float(value)


def _evaluated(run: RunDirectory) -> Iterator[tuple[str, float]]:
    scores = (run.json("evaluate", "results.json") or {}).get("eval", {})
    for name in (*POLICIES, "gain"):
        figures = scores.get(name) or {}
        for key, value in figures.items():
            if isinstance(value, int | float):
                yield f"{name}_{key}", float(value)
        for measure in ("em", "f1", "closed_book_em", "grounded"):
            if ends := figures.get("ci95" if measure == "em" else f"{measure}_ci95"):
                yield f"{name}_{measure}_low", float(ends[0])
                yield f"{name}_{measure}_high", float(ends[1])


def _registration(run: RunDirectory) -> Iterator[str]:
    facts = {**(run.json("register", "registered.json") or {}), **run.measured("register")}
    name, version, place = facts["name"], facts["version"], facts["tracking_uri"]
    yield f"## {_text(name)}, version {_text(version)}"
    yield ""
    rows = [
        ("alias", "challenger, until it is promoted"),
        ("model", facts["model_uri"]),
        ("MLflow", place),
        ("MLflow run", facts["parent_run_id"] or facts["run_id"]),
        ("policy digest", facts["policy_digest"]),
        ("suite digest", facts["suite_digest"]),
        ("data digest", facts["data_digest"]),
    ]
    if str(place).startswith("http"):
        rows.append(("page", f"{str(place).rstrip('/')}/#/models/{name}/versions/{version}"))
    yield from _table(("what", "value"), rows)
    yield ""
    yield f"`espalier promote {name} --version {version}` compares it with the champion."


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_text(cell) for cell in row)} |"


# markdown-to-jsx, which renders Kubeflow's pages, takes underscores within words for emphasis
_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_~=[]<>|"})
_LINK = re.compile(r"https?://[^\s|<>]+")
"""A bare URL, which becomes a link as it is; an escaping backslash would become part of it."""


def _text(value: object) -> str:
    """The value on one line, with Markdown escaped."""
    line = " ".join(visible(str(value)).split())
    return line if _LINK.fullmatch(line) else line.translate(_SPECIAL)
