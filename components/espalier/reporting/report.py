"""RUN/report.html: one page that explains a run, without scripts or external resources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from espalier.chain import STAGES
from espalier.records import policy_label, write_whole
from espalier.reporting import charts, dataset, formats
from espalier.reporting.charts import length_chart
from espalier.reporting.comparison import compare
from espalier.reporting.formats import NOT_RUN, duration, memory, number, words
from espalier.reporting.notices import notices_table
from espalier.reporting.reward_terms import term_front
from espalier.reporting.run_directory import RunDirectory, open_run, read_rows
from espalier.reporting.summary import RunSummary, summarize
from espalier.reporting.transcripts import newest_transcripts, sample_groups


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One large figure of the header."""

    label: str
    figure: str
    note: str = ""


def write_report(run_dir: Path) -> Path:
    """Write RUN/report.html in one rename and return its path.

    A stage that did not run is shown as such. Equal artifacts give equal bytes, because the page
    contains no date of its own.

    Raises:
        ArtifactError: the folder is not a run, or an artifact was damaged after publishing.
    """
    path = run_dir / "report.html"
    write_whole(path, render(open_run(run_dir)))
    return path


def render(run: RunDirectory) -> str:
    """The page as HTML; text of models and documents is escaped."""
    environment = page_environment()
    summary = summarize(run, None)
    results = run.json("evaluate", "results.json") or {}
    source, transcripts = newest_transcripts(run)
    return environment.get_template("report.html.jinja").render(
        style=page_style(environment),
        run_name=formats.visible(run.path.resolve().name),
        profile=run.profile,
        profile_text=json.dumps(run.profile, indent=2, ensure_ascii=False),
        key_figures=_key_figures(summary, policy_label(results, "untrained")),
        flow=stage_boxes(run),
        comparison=compare(results),
        has_results=bool(results),
        has_suites=bool(results.get("suites")),
        stages_run=frozenset(run.artifacts),
        suite=results.get("suite", {}),
        exact_match=charts.exact_match_chart(results),
        pretraining=charts.pretraining_chart(run),
        warm_start=charts.warm_start_chart(run),
        grpo=charts.grpo_chart(run),
        notices=notices_table(run),
        reward_terms=term_front(run),
        phase_columns=charts.PHASE_COLUMNS,
        phases=charts.phase_tables(run),
        pass_rates=charts.pass_rates(run),
        transcripts=transcripts,
        transcript_source=source,
        **_data_page(run),
        **_sources(run),
    )


def _data_page(run: RunDirectory) -> dict[str, Any]:
    """Sections about the training data: rows made and kept, lengths, samples."""
    made, accepted = read_rows(run, "synthesize"), read_rows(run, "validate")
    return {
        "funnel_steps": dataset.FUNNEL_STEPS,
        "funnel": dataset.rejection_funnel(run, made, accepted),
        "curation": dataset.curation(run),
        "lengths": length_chart(accepted or made),
        "sample_groups": sample_groups(accepted or made),
        "sampled_stage": "passed validation" if accepted else "are not yet validated",
    }


def _sources(run: RunDirectory) -> dict[str, Any]:
    return {
        "extraction": dataset.extraction_tables(run),
        "synthesis": dataset.synthesis_tables(run),
        "splits": dataset.entity_splits(run),
        "validation": dataset.validation_report(run),
        "registration": registration_facts(run),
        "artifacts": artifact_rows(run),
        "packages": package_versions(run),
        "attribution": attribution(run),
    }


def _key_figures(summary: RunSummary, base: str) -> tuple[KeyFigure, ...]:
    scores = summary.eval
    trained, gain = scores.trained, scores.gain
    stages = summary.stages.values()
    seconds = [stage.seconds for stage in stages if stage.seconds is not None]
    memory = [stage.peak_rss_mb for stage in stages if stage.peak_rss_mb is not None]
    return (
        KeyFigure(
            "trained, exact match",
            formats.percent(trained.em if trained else None),
            f"95 %: {formats.interval(trained.ci95)}, n {trained.n:,}" if trained else "",
        ),
        KeyFigure(
            "gain over warm start, points",
            formats.points(gain.em if gain else None),
            f"95 %: {formats.signed_interval(gain.ci95)}" if gain else "",
        ),
        KeyFigure(
            "before",
            formats.percent(scores.warm_start.em if scores.warm_start else None),
            f"warm start; {base} {formats.percent(scores.untrained.em)}"
            if scores.untrained
            else "warm start",
        ),
        KeyFigure(
            "time, all stages",
            formats.duration(sum(seconds)) if seconds else formats.NOT_RUN,
            f"peak memory {formats.memory(max(memory))}" if memory else "",
        ),
    )


def page_environment() -> Environment:
    """Templates and filters of the pages; all values are escaped."""
    environment = Environment(
        loader=PackageLoader("espalier.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"scalar": _scalar, "words": lambda name: formats.words(str(name))}
    return environment


def _scalar(value: object) -> str:
    return formats.visible(formats.number(value))


def page_style(environment: Environment) -> Markup:
    """The stylesheet of the pages."""
    return Markup(environment.get_template("report.css.jinja").render())  # no foreign text in it


@dataclass(frozen=True, slots=True)
class ArtifactRow:
    """A published artifact in the table of digests."""

    folder: str
    stage: str
    rows: str
    content: str
    integrity: str
    config_digest: str
    seed: int
    created: str
    inputs: tuple[tuple[str, str], ...]


def artifact_rows(run: RunDirectory) -> tuple[ArtifactRow, ...]:
    """Published artifacts in the order of the chain."""
    rows = []
    for stage in STAGES:
        artifact = run.artifacts.get(stage)
        if artifact is None:
            continue
        manifest = artifact.manifest
        counts = (f"{number(count)} {words(name)}" for name, count in manifest.rows.items())
        rows.append(
            ArtifactRow(
                folder=artifact.path.name,
                stage=words(stage),
                rows=", ".join(counts),
                content=manifest.content,
                integrity=manifest.integrity,
                config_digest=manifest.config_digest,
                seed=manifest.seed,
                created=manifest.created,
                inputs=tuple(manifest.inputs.items()),
            )
        )
    return tuple(rows)


def package_versions(run: RunDirectory) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Package -> recorded versions; several if the images of the stages differ."""
    seen: dict[str, set[str]] = {}
    for artifact in run.artifacts.values():
        for package, version in artifact.manifest.packages.items():
            seen.setdefault(package, set()).add(version)
    return tuple((package, tuple(sorted(versions))) for package, versions in sorted(seen.items()))


def registration_facts(run: RunDirectory) -> dict[str, Any]:
    """Name, version and alias of the registered model."""
    artifact = run.artifacts.get("register")
    if artifact is None:
        return {}
    facts = {**(artifact.json("registered.json") or {}), **artifact.measured()}
    return {key: value for key, value in facts.items() if key not in ("seconds", "peak_rss_mb")}


def attribution(run: RunDirectory) -> str:
    """The attribution that the licence of the knowledge (CC BY) requires; "" if there is none."""
    artifact = run.artifacts.get("ingest")
    return artifact.text("attribution.txt").strip() if artifact else ""


_SHOWN_ROWS = 3
"""Row counts shown per stage; the table of digests lists all."""


@dataclass(frozen=True, slots=True)
class StageBox:
    """A stage in the flow diagram."""

    title: str
    ran: bool
    cost: str
    lines: tuple[str, ...]
    percent: float
    """Share of the run's time, 0-100."""


def stage_boxes(run: RunDirectory) -> tuple[StageBox, ...]:
    """Every stage of the chain, including those that did not run."""
    seconds = {stage: float(run.measured(stage).get("seconds") or 0.0) for stage in run.artifacts}
    total = sum(seconds.values()) or 1.0
    return tuple(_stage_box(run, stage, 100 * seconds.get(stage, 0.0) / total) for stage in STAGES)


def _speed_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """Speed of the updates and share of accepted draft tokens of a training stage, if measured."""
    tokens, share = (measured.get(name) for name in ("update_tokens_per_s", "update_matmul_share"))
    if tokens is not None and share is not None:
        yield f"updates {tokens:,.0f} tokens/s, {100 * share:.0f} % of matmul peak"
    drafted, accepted = (measured.get(name) for name in ("drafted_tokens", "accepted_tokens"))
    if drafted and accepted is not None:
        kept = 100 * accepted / drafted
        yield f"{drafted:,.0f} tokens drafted from earlier answers, {kept:.0f} % kept"


def _policy_lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """Type of the base policy and its dialect, of the stage that prepares it."""
    if "dialect" in measured:
        yield f"{measured['model_type']}, dialect {measured['dialect']}"


def _stage_box(run: RunDirectory, stage: str, percent: float) -> StageBox:
    artifact = run.artifacts.get(stage)
    if artifact is None:
        stopped = stage == "validate" and run.failed_validation is not None
        return StageBox(
            title=words(stage),
            ran=False,
            cost="stopped the run" if stopped else NOT_RUN,
            lines=(),
            percent=0.0,
        )
    measured = run.measured(stage)
    cost = (duration(measured.get("seconds")), memory(measured.get("peak_rss_mb")))
    counts = list(artifact.manifest.rows.items())[:_SHOWN_ROWS]
    return StageBox(
        title=words(stage),
        ran=True,
        cost=", ".join(part for part in cost if part),
        lines=(
            *(f"{number(count)} {words(name)}" for name, count in counts),
            *_policy_lines(measured),
            *_speed_lines(measured),
        ),
        percent=round(percent, 1),
    )
