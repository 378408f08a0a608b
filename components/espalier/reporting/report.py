"""RUN/report.html: one file that explains a run, without scripts, fonts or anything to load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from espalier.reporting import charts, dataset, formats, phases, provenance, rejections
from espalier.reporting.comparison import compare
from espalier.reporting.distributions import length_chart
from espalier.reporting.flow import stage_boxes
from espalier.reporting.material import material_of
from espalier.reporting.run_directory import RunDirectory, open_run, replace_text
from espalier.reporting.samples import sample_groups
from espalier.reporting.summary import Summary, summarize
from espalier.reporting.transcripts import newest_transcripts


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One large figure of the header."""

    label: str
    figure: str
    note: str = ""


def write_report(run_dir: Path) -> Path:
    """Write RUN/report.html in one rename and return its path.

    A stage that did not run is shown as such. Equal artifacts give equal bytes: the page holds no
    date of its own.

    Raises:
        ArtifactError: a folder that is no run, or an artifact that was damaged after publishing.
    """
    path = run_dir / "report.html"
    replace_text(path, render(open_run(run_dir)))
    return path


def render(run: RunDirectory) -> str:
    """The page as text; whatever a model or a document wrote is escaped."""
    environment = _environment()
    summary = summarize(run, None)
    results = run.json("evaluate", "results.json") or {}
    source, transcripts = newest_transcripts(run)
    return environment.get_template("report.html.jinja").render(
        style=Markup(_style(environment)),  # our own stylesheet
        run_name=formats.visible(run.path.resolve().name),
        profile=run.profile,
        profile_text=json.dumps(run.profile, indent=2, ensure_ascii=False),
        key_figures=_key_figures(summary),
        flow=stage_boxes(run),
        comparison=compare(results),
        has_results=bool(results),
        stages_run=frozenset(run.artifacts),
        suite=results.get("suite", {}),
        exact_match=charts.exact_match_chart(results),
        pretraining=charts.pretraining_chart(run),
        warm_start=charts.warm_start_chart(run),
        grpo=charts.grpo_chart(run),
        phase_columns=phases.COLUMNS,
        phases=phases.phase_story(run),
        pass_rates=charts.pass_rates(run),
        transcripts=transcripts,
        transcript_source=source,
        **_data_page(run),
        **_sources(run),
    )


def _data_page(run: RunDirectory) -> dict[str, Any]:
    """What a reader should see of the data before believing a figure that it led to."""
    made, accepted = material_of(run, "synthesize"), material_of(run, "validate")
    return {
        "funnel_steps": rejections.STEPS,
        "funnel": rejections.rejection_funnel(run, made, accepted),
        "curation": rejections.curation(run),
        "lengths": length_chart(accepted or made),
        "sample_groups": sample_groups(accepted or made),
        "sampled_stage": "passed validation" if accepted else "are not yet validated",
    }


def _sources(run: RunDirectory) -> dict[str, Any]:
    return {
        "extraction": dataset.extraction_tables(run),
        "synthesis": dataset.synthesis_story(run),
        "splits": dataset.entity_splits(run),
        "validation": dataset.validation_report(run),
        "registration": provenance.registration_facts(run),
        "artifacts": provenance.artifact_rows(run),
        "packages": provenance.package_versions(run),
        "attribution": provenance.attribution(run),
    }


def _key_figures(summary: Summary) -> tuple[KeyFigure, ...]:
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
            f"warm start; untrained {formats.percent(scores.untrained.em)}"
            if scores.untrained
            else "warm start",
        ),
        KeyFigure(
            "time, all stages",
            formats.duration(sum(seconds)) if seconds else formats.NOT_RUN,
            f"peak memory {formats.memory(max(memory))}" if memory else "",
        ),
    )


def _environment() -> Environment:
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


def _style(environment: Environment) -> str:
    return environment.get_template("report.css.jinja").render()
