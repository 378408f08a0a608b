"""The report of a run as sections of tables; nothing here decides how they look."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from espalier.chain import STAGES
from espalier.records import policy_label
from espalier.reporting import dataset
from espalier.reporting.comparison import Cell, compare
from espalier.reporting.formats import (
    NOT_RUN,
    duration,
    interval,
    memory,
    number,
    percent,
    points,
    signed_interval,
    words,
)
from espalier.reporting.histories import history_of, kept_weights, phase_tables
from espalier.reporting.reward_terms import term_tables
from espalier.reporting.run_directory import RunDirectory, TrainingRows, read_rows
from espalier.reporting.summary import RunSummary, summarize
from espalier.reporting.tables import ReportTable, Section, Value, numbers, table_of
from espalier.reporting.transcripts import sample_tables

_CURVES = {
    "continue_pretraining": "Continued pre-training",
    "warm_start": "Warm start",
    "train": "Reinforcement learning",
}


def report_sections(run: RunDirectory) -> tuple[Section, ...]:
    """All sections in reading order; equal artifacts give equal ones.

    A stage that did not run is named as such. Texts of models and documents are as they were
    written: what shows them escapes them.

    Raises:
        ArtifactError: an artifact was damaged after publishing, or is not of its documented shape.
    """
    made, accepted = read_rows(run, "synthesize"), read_rows(run, "validate")
    synthesized = dataset.synthesis(run)
    found = (
        _key_figures(run),
        _flow(run),
        _comparison(run),
        _curves(run),
        _phases(run),
        _curriculum(run),
        _splits(run, synthesized),
        _extraction(run),
        _synthesis(run, synthesized),
        _validation(run),
        _curation(run),
        _funnel(run, made, accepted),
        _lengths(accepted or made),
        _samples(accepted or made, is_accepted=accepted is not None),
        _provenance(run),
    )
    return tuple(section for section in found if section is not None)


def _absent(title: str, stage: str, run: RunDirectory) -> Section:
    if stage in run.artifacts:
        return Section(title, f"{words(stage)} ran and has nothing to show here")
    return Section(title, f"{NOT_RUN}: {words(stage)}")


def _facts(name: str, facts: Mapping[str, Value]) -> ReportTable:
    return ReportTable(name, ("name", "value"), tuple(facts.items()), "facts")


def _noted(figure: str, note: str) -> str:
    return f"{figure} ({note})" if note else figure


# ----------------------------------------------------------------------- figures and cost


def _key_figures(run: RunDirectory) -> Section:
    summary = summarize(run, None)
    results = run.json("evaluate", "results.json") or {}
    registered = _registration(run)
    facts = dict(_scores(summary, policy_label(results, "untrained")))
    facts |= {
        "profile": str(run.profile.get("name", "unknown")),
        "seed": str(run.profile.get("seed", "unknown")),
    }
    if registered:
        name, version = registered.get("name", "?"), registered.get("version", "?")
        facts["registered as"] = f"{name}, version {version}"
    return Section("Key figures", "", (_facts("Scores and cost", facts),))


def _scores(summary: RunSummary, base: str) -> Iterator[tuple[str, str]]:
    scores = summary.eval
    trained, gain, before, untrained = (
        scores.trained, scores.gain, scores.warm_start, scores.untrained,
    )  # fmt: skip
    yield (
        "trained, exact match",
        _noted(
            percent(trained.em if trained else None),
            f"95 %: {interval(trained.ci95)}, n {trained.n:,}" if trained else "",
        ),
    )
    yield (
        "gain over warm start, points",
        _noted(
            points(gain.em if gain else None),
            f"95 %: {signed_interval(gain.ci95)}" if gain else "",
        ),
    )
    yield "before: warm start", percent(before.em if before else None)
    if untrained:
        yield f"before: {base}", percent(untrained.em)
    seconds = [one.seconds for one in summary.stages.values() if one.seconds is not None]
    peaks = [one.peak_rss_mb for one in summary.stages.values() if one.peak_rss_mb is not None]
    yield "time, all stages", duration(sum(seconds)) if seconds else NOT_RUN
    if peaks:
        yield "peak memory", memory(max(peaks))


def _flow(run: RunDirectory) -> Section:
    seconds = {stage: float(run.measured(stage).get("seconds") or 0.0) for stage in run.artifacts}
    total = sum(seconds.values()) or 1.0
    rows = (
        _stage_row(run, stage, round(100 * seconds.get(stage, 0.0) / total, 1)) for stage in STAGES
    )
    columns = ("stage", "time", "share of time, %", "peak memory", "made")
    return Section(
        "Flow",
        "Every stage of the chain with its cost and what it made.",
        (ReportTable("Stages", columns, tuple(rows), "bars"),),
    )


def _stage_row(run: RunDirectory, stage: str, share: float) -> tuple[Value, ...]:
    artifact = run.artifacts.get(stage)
    if artifact is None:
        stopped = stage == "validate" and run.failed_validation is not None
        cost = "stopped the run" if stopped else NOT_RUN
        return words(stage), cost, None, "", ""
    measured = run.measured(stage)
    made = (f"{number(count)} {words(name)}" for name, count in artifact.manifest.rows.items())
    return (
        words(stage),
        duration(measured.get("seconds")),
        share,
        memory(measured.get("peak_rss_mb")),
        "; ".join((*made, *_policy_facts(measured), *_speeds(measured))),
    )


def _policy_facts(measured: Mapping[str, Any]) -> Iterator[str]:
    """Type of the base policy and its dialect, of the stage that prepares it."""
    if "dialect" in measured:
        yield f"{measured['model_type']}, dialect {measured['dialect']}"


def _speeds(measured: Mapping[str, Any]) -> Iterator[str]:
    """Speed of the updates and share of accepted draft tokens of a training stage, if measured."""
    tokens, share = (measured.get(name) for name in ("update_tokens_per_s", "update_matmul_share"))
    if tokens is not None and share is not None:
        yield f"updates {tokens:,.0f} tokens/s, {100 * share:.0f} % of matmul peak"
    drafted, accepted = (measured.get(name) for name in ("drafted_tokens", "accepted_tokens"))
    if drafted and accepted is not None:
        kept = 100 * accepted / drafted
        yield f"{drafted:,.0f} tokens drafted from earlier answers, {kept:.0f} % kept"


# ---------------------------------------------------------------- evaluation and training


def _comparison(run: RunDirectory) -> Section:
    title = "Before and after"
    results = run.json("evaluate", "results.json") or {}
    if not results:
        return _absent(title, "evaluate", run)
    note = (
        "The same held-out questions for every policy. Exact match and F1 are greedy, with 95 % "
        "bootstrap intervals; the difference is paired; pass@k is sampled."
    )
    if results.get("suites"):
        note += " The suites of the profile follow at the end, each with its headline score."
    if digest := results.get("suite", {}).get("digest"):
        note += f" Suite {digest}."
    compared = compare(results)
    columns = ("measure", *compared.policies, "trained minus warm start")
    tables = [
        ReportTable(
            name,
            columns,
            tuple((row.label, *map(_cell, (*row.cells, row.change))) for row in rows),
        )
        for name, rows in compared.groups
    ]
    return Section(title, note, tuple(tables))


def _cell(cell: Cell) -> str:
    return _noted(cell.figure, cell.note)


def _curves(run: RunDirectory) -> Section:
    """The stages before reinforcement learning as tables: its figures are a stream of their own."""
    notes = ["Every step as measured, nothing smoothed."]
    tables = []
    for stage, title in _CURVES.items():
        history = history_of(run, stage)
        if history is None and stage != "continue_pretraining":  # which most profiles have none of
            notes.append(f"{title}: {_absent('', stage, run).note}.")
        elif history is not None:
            notes += [f"{title}: {kept}" for kept in [kept_weights(run, stage)] if kept]
            if stage != "train":
                tables.append(table_of(history, title, "lines"))
    return Section("Learning curves", " ".join(notes), tuple(tables))


def _phases(run: RunDirectory) -> Section | None:
    tables = (*term_tables(run), *phase_tables(run))
    if not tables:
        return None
    return Section(
        "Terms and phases of training",
        "Pareto front: the evaluated steps that no other beats in dev exact match and in each term "
        "of the reward (means over ten steps). A term that rises while dev exact match falls shows "
        "that the policy exploits the reward. Phases: their results, and the tasks that self-play "
        "proposed at the end of each from those never solved; refused ones count as proposed.",
        tables,
    )


def _curriculum(run: RunDirectory) -> Section:
    if run.profile.get("curriculum", {}).get("enabled") is False:
        note = "curriculum.enabled is false: training draws from all accepted tasks."
        return Section("Curriculum", note)
    table = run.table("filter_curriculum", "pass_rates.parquet")
    if table is None or table.empty:
        return _absent("Curriculum", "filter_curriculum", run)
    band = run.profile.get("curriculum", {}).get("pass_rate_band")
    kept = int(numbers(table, "kept").sum())
    within = (
        ": those that the warm-started policy solves in "
        f"{100 * band[0]:g} to {100 * band[1]:g} % of its attempts"
        if band
        else ""
    )
    return Section(
        "Curriculum",
        f"{kept} of {len(table)} tasks were kept{within}. A task that is always or never solved "
        "gives a group no gradient.",
        (dataset.pass_rate_table(table),),
    )


# ---------------------------------------------------------------------------------- data


def _splits(run: RunDirectory, found: dataset.Synthesis | None) -> Section:
    tables = dataset.entity_splits(run)
    if not tables:
        return _absent("Entities by split", "ingest", run)
    hubs = f" Kinds with hubs: {', '.join(found.hub_kinds)}." if found and found.hub_kinds else ""
    return Section(
        "Entities by split",
        "Held-out entities are kept out of training questions, training documents and the "
        "tokenizer's text. Hubs are exempt: as values they occur in every split." + hubs,
        tables,
    )


def _extraction(run: RunDirectory) -> Section | None:
    tables = dataset.extraction_tables(run)
    note = (
        "Statements that a model extracted from the documents, by the reason to keep or refuse "
        "them: a statement counts only if its quotation occurs in the document and names its "
        "subject and object."
    )
    return Section("Extraction", note, tables) if tables else None


def _synthesis(run: RunDirectory, found: dataset.Synthesis | None) -> Section:
    if found is None:
        return _absent("Synthesis", "synthesize", run)
    return Section("Synthesis", "\n".join(found.remarks), found.tables)


def _validation(run: RunDirectory) -> Section:
    report = dataset.validation_report(run)
    if not report:
        return _absent("Validation", "validate", run)
    counts = ", ".join(f"{number(n)} {words(name)}" for name, n in report["accepted"].items())
    verdict = f"Verdict: {report['verdict']}; accepted {counts or 'nothing'}."
    return Section(
        "Validation",
        "\n".join((verdict, *report.get("faults", ()))),
        dataset.expectation_tables(report),
    )


def _curation(run: RunDirectory) -> Section | None:
    tables = dataset.curation_tables(run)
    return Section("Curation", "Rows that curation dropped, by reason.", tables) if tables else None


def _funnel(
    run: RunDirectory, made: TrainingRows | None, accepted: TrainingRows | None
) -> Section | None:
    tables = dataset.rejection_funnel(run, made, accepted)
    note = (
        "Rows after each step, empty where a step does not apply; reasons are in the tables above."
    )
    return Section("From requested to trained rows", note, tables) if tables else None


def _lengths(rows: TrainingRows | None) -> Section | None:
    tables = dataset.length_tables(rows)
    return Section("Lengths", "Rows by length.", tables) if tables else None


def _samples(rows: TrainingRows | None, *, is_accepted: bool) -> Section | None:
    tables = sample_tables(rows)
    state = "passed validation" if is_accepted else "are not yet validated"
    note = f"Unedited rows, evenly spaced over each kind; those shown {state}."
    return Section("Samples", note, tables) if tables else None


# ---------------------------------------------------------------------------- provenance


def _provenance(run: RunDirectory) -> Section:
    profile = json.dumps(run.profile, indent=2, ensure_ascii=False)
    texts = [("Profile", profile, "")]
    if attribution := _attribution(run):
        texts.append(("Attribution of the knowledge", attribution, ""))
    tables = [ReportTable("Texts", ("title", "text", "more"), tuple(texts), "texts")]
    if run.artifacts:
        tables = [*_artifact_tables(run), _versions(run), *tables]
    if registered := _registration(run):
        tables.insert(0, _facts("Registration", registered))
    return Section(
        "Provenance",
        "Two runs with equal content digests made the same data and models; digests do not depend "
        "on times, hosts or dates.",
        tuple(tables),
    )


def _artifact_tables(run: RunDirectory) -> Iterator[ReportTable]:
    """Published artifacts in the order of the chain, and what each was made from."""
    found = [run.artifacts[stage] for stage in STAGES if stage in run.artifacts]
    yield ReportTable(
        "Artifacts",
        ("artifact", "content digest (SHA-256)", "published, UTC"),
        tuple(
            (one.path.name, one.manifest.content, one.manifest.created[:16].replace("T", " "))
            for one in found
        ),
    )
    yield ReportTable(
        "Digests of settings, files and inputs",
        ("artifact", "seed", "config", "integrity", "inputs"),
        tuple(
            (
                one.path.name,
                str(one.manifest.seed),
                one.manifest.config_digest,
                one.manifest.integrity,
                ", ".join(f"{name} {digest}" for name, digest in one.manifest.inputs.items()),
            )
            for one in found
        ),
    )


def _versions(run: RunDirectory) -> ReportTable:
    """Package -> recorded versions; several if the images of the stages differ."""
    seen: dict[str, set[str]] = {}
    for artifact in run.artifacts.values():
        for package, version in artifact.manifest.packages.items():
            seen.setdefault(package, set()).add(version)
    return _facts(
        "Versions",
        {
            package: ", ".join(sorted(versions))
            + (" (stages of this run differ)" if len(versions) > 1 else "")
            for package, versions in sorted(seen.items())
        },
    )


def _registration(run: RunDirectory) -> dict[str, Value]:
    """Facts of the registered model version, without the stage's cost; {} if there is none."""
    artifact = run.artifacts.get("register")
    if artifact is None:
        return {}
    facts = {**(artifact.json("registered.json") or {}), **artifact.measured()}
    return {
        words(key): value if isinstance(value, str) else json.dumps(value)
        for key, value in facts.items()
        if key not in ("seconds", "peak_rss_mb")
    }


def _attribution(run: RunDirectory) -> str:
    """The attribution that the licence of the knowledge (CC BY) requires; "" if there is none."""
    artifact = run.artifacts.get("ingest")
    return artifact.text("attribution.txt").strip() if artifact else ""
