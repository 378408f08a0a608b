"""`espalier evaluate --suite`: judges any model on any suites, resumable, with a report card."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from espalier.config import HELDOUT, Profile
from espalier.determinism import prepare_torch
from espalier.evaluation.attempts import AttemptFile
from espalier.evaluation.card import checked_golds, report_card
from espalier.evaluation.contamination import (
    Contamination,
    SuitePrints,
    contamination,
    require_uncontaminated,
)
from espalier.evaluation.suite_results import (
    TaskRow,
    paired_scores,
    suite_figures,
    task_rows,
)
from espalier.evaluation.suites import (
    NamedSuite,
    bootstrap_settings,
    ingested,
    opened_suite,
    parsed_names,
    suite_config,
)
from espalier.orchestration.finished_run import FinishedRun, open_finished_run
from espalier.orchestration.judged_models import JudgedModel, judged_model
from espalier.orchestration.results import aligned
from espalier.records import (
    ProfileError,
    json_digest,
    open_artifact,
    write_whole,
)
from espalier.reporting.report_card import card_html, card_markdown, ends, percent
from espalier.steps.profiles import named_profile, pipelines_dir

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOrder:
    """Options of the command line."""

    model: str
    """An endpoint of the profile, URL#MODEL, a model directory, or a registered model."""
    suites: str
    """Names of suites, separated by commas."""
    against: str | None = None
    """Another model to compare with, in the same notation."""
    out: Path | None = None
    run: Path | None = None
    profile: str = "laptop"
    overrides: Sequence[str] = ()
    runs: Path = Path("runs")
    endpoint: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings of endpoints that are given as URL#MODEL: key_variable, prompt_price, ..."""
    command: str = "espalier evaluate"
    """The command as typed, for the report card."""


class Evaluated(dict[str, Any]):
    """The content of results.json."""

    folder: Path
    """Folder of results.json and of the report card."""


def evaluate_on_suites(order: EvaluationOrder, say: Say) -> Evaluated:
    """Judge a model, and optionally another, on the suites; write results and report card.

    The same command continues a killed one: finished attempts are kept in the output folder, by
    suite, model and seed.

    Raises:
        ProfileError: no such suite, or a suite is named twice.
        RegistryError: no such model.
        DataError: a suite's file has no such tasks, or the policy's training overlaps with a suite.
        EngineError: the endpoint cannot be used.
        EnvironmentLostError: more attempts were lost than `evaluation.max_lost_share` allows.
    """
    names = parsed_names(order.suites)
    run = open_finished_run(order.run) if order.run else None
    profile = _profile_of(order, run)
    # first, so that an unknown suite is reported before any model is loaded
    profiles = sorted((pipelines_dir() / "profiles").glob("*.toml"))
    configs = {
        name: suite_config(name, profile, profiles, of_run=run is not None) for name in names
    }
    out = order.out or Path("evaluations") / _slug(order.model)
    with TemporaryDirectory(prefix="espalier-evaluate-") as folder:
        scratch = Path(folder)
        names_to_judge = [order.model] if order.against is None else [order.model, order.against]
        models = [
            judged_model(
                name,
                profile,
                scratch / str(number),
                run=order.run,
                runs=order.runs,
                endpoint=order.endpoint,
            )
            for number, name in enumerate(names_to_judge)
        ]
        if len(models) > 1 and models[0].digest == models[1].digest:
            raise ProfileError(f"{order.model} and {order.against} are the same model")
        if any(model.policy_dir for model in models):
            prepare_torch(profile.threads)
        suites: dict[str, Any] = {}
        for name, (config, own_profile) in configs.items():
            accepted = run.folder("accepted") if run and name == HELDOUT else None
            knowledge_of = _knowledge_of(run, out)
            with opened_suite(name, config, own_profile, knowledge_of, accepted) as suite:
                suites[name] = _suite_results(suite, models, out, order.command, say)
    results = Evaluated(
        command=order.command,
        models=[{"name": m.name, "digest": m.digest, **m.facts} for m in models],
        bootstrap=dict(bootstrap_settings(profile.evaluation, profile.seed)),
        confidence=f"{profile.evaluation.confidence:.0%}",
        suites=suites,
    )
    results.folder = out
    _write(out, results)
    return results


def _profile_of(order: EvaluationOrder, run: FinishedRun | None) -> Profile:
    if run is None:
        return named_profile(order.profile, order.overrides)
    if order.overrides:
        raise ProfileError(
            "--set changes a profile, but --run uses the run's own; leave one of them out"
        )
    return run.profile


def _knowledge_of(run: FinishedRun | None, out: Path) -> Callable[[Profile], Path]:
    def knowledge_of(profile: Profile) -> Path:
        if run is not None and profile.environment.name == run.profile.environment.name:
            open_artifact(run.folder("knowledge"))
            return run.folder("knowledge")
        return ingested(profile, out)

    return knowledge_of


# ------------------------------------------------------------------------------------- suites


def _suite_results(
    suite: NamedSuite, models: Sequence[JudgedModel], out: Path, command: str, say: Say
) -> dict[str, Any]:
    config, seed = suite.profile.evaluation, suite.profile.seed
    prints = SuitePrints.of(
        suite.family,
        suite.tasks,
        suite.seen,
        config.contamination.run_words,
        is_public=suite.is_public,
    )
    found: dict[str, Contamination] = {}
    for model in models:
        found[model.name] = contamination(model.training, prints, config.contamination)
        require_uncontaminated(
            found[model.name],
            config.contamination,
            suite=suite.name,
            model=model.name,
            num_tasks=len(suite.tasks),
        )
        say(f"{suite.name}: {model.name}: {found[model.name].said(len(suite.tasks))}")
    golds = checked_golds(suite, out / suite.name / f"golds-{suite.digest[:12]}.json")
    figures: dict[str, dict[str, Any]] = {}
    rows: dict[str, list[TaskRow]] = {}
    cards: dict[str, Any] = {}
    for model in models:
        attempts = _attempts(suite, model, out, say)
        rows[model.name] = task_rows(suite, model.name, attempts, found[model.name])
        overlap = found[model.name]
        figures[model.name] = {
            **suite_figures(suite, rows[model.name], attempts, config, seed),
            "contamination": {
                **overlap.as_dict(len(suite.tasks)),
                "said": overlap.said(len(suite.tasks)),
            },
        }
        cards[model.name] = report_card(
            suite, figures[model.name], golds, command=command, recovery=_recovery(suite, model)
        )
    content: dict[str, Any] = {
        **suite.facts(),
        "ks": sorted({1, suite.config.attempts}),
        "golds": golds,
        "models": figures,
        "cards": cards,
        "against": None,
    }
    if len(models) > 1:
        one, other = models[0].name, models[1].name
        difference = paired_scores(rows[one], rows[other], config, seed)
        content["against"] = {"model": one, "other": other, **difference}
    return content


def _attempts(suite: NamedSuite, model: JudgedModel, out: Path, say: Say) -> list[Any]:
    # imported here, because it loads torch, which slows down the report of earlier errors
    from espalier.evaluation.players import EndpointPlayer, Player, PolicyPlayer, judge

    made_of = {"suite": suite.digest, "model": model.digest, "seed": str(suite.profile.seed)}
    path = out / suite.name / f"attempts-{json_digest(made_of)[:12]}.jsonl"
    with AttemptFile.opened(path, made_of) as kept:
        wanted = len(suite.tasks) * suite.config.attempts
        say(f"{suite.name}: {model.name} has {len(kept.kept)} of {wanted} attempts in {path}")
        if model.endpoint is not None:
            player: Player = EndpointPlayer(model.endpoint, model.key, suite)
        else:
            assert model.policy_dir is not None, "a model is an endpoint or a policy"
            player = PolicyPlayer(model.policy_dir, suite)
        return judge(player, suite, kept)


def _recovery(suite: NamedSuite, model: JudgedModel) -> str:
    rollout, share = suite.profile.rollout, suite.profile.evaluation.max_lost_share
    sentences = [model.recovery] if model.recovery else []
    sentences.append(
        f"an attempt that lost its environment is repeated up to {rollout.max_replays} times; "
        f"a call of the environment may take {rollout.tool_timeout_s:g} s"
    )
    sentences.append(
        f"attempts that stay lost count as 0; with more than {100 * share:g} % of them nothing is "
        "reported"
    )
    return "; ".join(sentences)


# ------------------------------------------------------------------------------------- output


def _write(out: Path, results: Mapping[str, Any]) -> None:
    cards = {name: suite["cards"] for name, suite in results["suites"].items()}
    for name, text in {
        "card.json": json.dumps(cards, indent=1, ensure_ascii=False) + "\n",
        "report.md": card_markdown(results),
        "report.html": card_html(results),
        "results.json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
    }.items():
        write_whole(out / name, text)


def results_text(results: Evaluated) -> str:
    """The figures as a table for a terminal, and the paths of the reports."""
    rows: list[dict[str, str]] = []
    lines: list[str] = []
    for name, suite in results["suites"].items():
        for model, found in suite["models"].items():
            headline = found.get("headline", {})
            rows.append(
                {
                    "suite": name,
                    "model": model,
                    "score": suite["headline"],
                    "%": percent(headline.get("mean")),
                    "interval": ends(headline.get("ci95")),
                    "tasks": str(found["n"]),
                    "excluded": str(found["excluded"]),
                    "lost": str(found["lost"]),
                    "cost": f"{found['cost']:g}",
                }
            )
        if against := suite["against"]:
            lines.append(_difference(name, against))
    lines += [f"report      {results.folder / 'report.html'}"]
    lines += [f"results     {results.folder / 'results.json'}"]
    return "\n".join([aligned(rows), "", *lines])


def _difference(name: str, against: Mapping[str, Any]) -> str:
    pair = f"{name}: {against['model']} - {against['other']}"
    if "mean" not in against:
        return f"{pair}: no task is left to compare on"
    low, high = against["ci95"]
    return (
        f"{pair}: {100 * against['mean']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}), "
        f"paired over {against['n']} tasks"
    )


def _slug(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-.")[:80] or "model"
