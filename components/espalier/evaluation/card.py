"""Report card of an evaluation: seven traits of a good benchmark, and the settings it ran under.

The traits: enough questions, verified gold answers, one headline number with its interval, one
command, a meaningful task, reliable grading, not saturated. Each has its evidence and a verdict.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from espalier.environments import check_golds
from espalier.evaluation.suites import NamedSuite, chosen_tasks, settings_of
from espalier.records import ArtifactError, write_whole

ENOUGH_QUESTIONS = 1000
SATURATED = 0.95
"""Headline score from which a suite no longer separates good models."""


def checked_golds(suite: NamedSuite, path: Path) -> dict[str, Any]:
    """Result of `check_golds` on a sample of the suite's tasks, cached in the file `path`.

    Raises:
        ArtifactError: the file exists and does not hold such a result.
        EnvironmentLostError: an environment was lost, so the gold answers could not be checked.
    """
    count = suite.profile.evaluation.gold_checks
    tasks = chosen_tasks(suite.tasks, count) if count else []
    if path.is_file():
        kept = _kept_golds(path)
        if (kept["suite"], kept["checked"]) == (suite.digest, len(tasks)):
            return kept
    found = check_golds(suite.family, tasks, suite.environments)
    result = {
        "suite": suite.digest,
        "checked": len(tasks),
        "accepted": found.accepted,
        "refused": found.refused,
        "faults": [fault._asdict() for fault in found.faults],
    }
    write_whole(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result


class _Fault(BaseModel):
    task_id: str
    fault: str


class _Golds(BaseModel):
    suite: str
    checked: int
    accepted: int
    refused: int
    faults: list[_Fault]


def _kept_golds(path: Path) -> dict[str, Any]:
    try:
        return _Golds.model_validate_json(path.read_bytes()).model_dump()
    except (OSError, ValidationError) as error:
        raise ArtifactError(
            f"{path}: does not hold the result of a check of gold answers. Delete it, and the same "
            "command checks them again"
        ) from error


def report_card(
    suite: NamedSuite,
    figures: Mapping[str, Any],
    golds: Mapping[str, Any],
    *,
    command: str,
    recovery: str,
) -> dict[str, Any]:
    """Report card of one model on one suite.

    Args:
        suite: the suite.
        figures: from `suite_figures`.
        golds: from `checked_golds`.
        command: the command line that was run, without API keys.
        recovery: how lost requests and environments were handled, in words.

    Returns:
        `traits`, each with `trait`, `holds` (None if the reader has to decide) and `found` (the
        evidence); and `facts`.
    """
    headline = figures.get("headline")
    return {
        "traits": [
            _size(suite, figures),
            _golds(golds),
            _trait(
                "one headline number with its interval",
                holds=headline is not None,
                found=_headline_text(headline),
            ),
            _trait("one command", holds=True, found=f"`{command}`"),
            _trait("meaningful task", holds=None, found=_about(suite)),
            _grading(suite, golds),
            _saturation(headline),
        ],
        "facts": _facts(suite, recovery),
    }


def _trait(name: str, *, holds: bool | None, found: str) -> dict[str, Any]:
    return {"trait": name, "holds": holds, "found": found}


def _size(suite: NamedSuite, figures: Mapping[str, Any]) -> dict[str, Any]:
    judged = figures["n"]
    is_all = judged == suite.available
    found = f"{judged} of {suite.available} available tasks judged"
    if is_all and judged < ENOUGH_QUESTIONS:
        found = (
            f"all {judged} tasks that there are, fewer than {ENOUGH_QUESTIONS:,}: the interval "
            "says what they show"
        )
    if excluded := figures["excluded"]:
        found += f"; {excluded} left out as contaminated"
    holds = judged >= ENOUGH_QUESTIONS or is_all
    return _trait(
        f"{ENOUGH_QUESTIONS:,} questions, or all that there are", holds=holds, found=found
    )


def _golds(golds: Mapping[str, Any]) -> dict[str, Any]:
    checked, faults = golds["checked"], golds["faults"]
    if not checked:
        reason = "not checked: evaluation.gold_checks = 0"
        return _trait("verified golds", holds=None, found=reason)
    found = (
        f"{golds['accepted']} of {checked} gold answers get the full score, "
        f"{golds['refused']} answers of another task get less"
    )
    if faults:
        found += f"; first fault: {faults[0]['task_id']}: {faults[0]['fault']}"
    return _trait("verified golds", holds=not faults, found=found)


def _headline_text(headline: Mapping[str, Any] | None) -> str:
    if headline is None:
        return "none: no task is left"
    low, high = headline["ci95"]
    return (
        f"{headline['name']} {100 * headline['mean']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    )


def _about(suite: NamedSuite) -> str:
    module = inspect.getmodule(type(suite.family))
    written = (inspect.getdoc(module) if module else "") or type(suite.family).__name__
    first = " ".join(written.partition("\n\n")[0].split())
    tools = ", ".join(tool.name for tool in suite.environments.tools) or "none"
    return f"{first} Tools: {tools}."


def _grading(suite: NamedSuite, golds: Mapping[str, Any]) -> dict[str, Any]:
    judges = suite.profile.reward.judges
    decides = judges is not None and judges.decides != "nothing"
    kinds = ", ".join(sorted({task.verifier.kind for task in suite.tasks}))
    found = f"by rule ({kinds})" if not decides else f"by rule ({kinds}) and by judges"
    wrong = [f for f in golds["faults"] if f["fault"].startswith("the gold answer of")]
    if wrong:
        found += f"; {len(wrong)} tasks take the gold answer of another task as right"
    return _trait("reliable grading", holds=not decides and not wrong, found=found)


def _saturation(headline: Mapping[str, Any] | None) -> dict[str, Any]:
    name = "not saturated"
    if headline is None:
        return _trait(name, holds=None, found="no task is left")
    mean = headline["mean"]
    found = f"{100 * mean:.1f} % of at most 100; saturated from {100 * SATURATED:g} % on"
    return _trait(name, holds=mean < SATURATED, found=found)


def _facts(suite: NamedSuite, recovery: str) -> dict[str, Any]:
    episode = suite.profile.episode
    settings = settings_of(suite.config, suite.profile, suite.family)
    stated_elsewhere = {
        "name", "scaffold", "episode", "attempts", "temperature", "headline", "view"
    }  # fmt: skip
    agent = suite.profile.agent
    scaffold = {
        "tools": "messages with the family's tools, in the policy's dialect or as native calls",
        "answer": "one answer, no tools offered",
    }[suite.config.scaffold]
    return {
        "environment": {
            "family": suite.family.name,
            "tasks": suite.source,
            "settings": {
                key: value for key, value in settings.items() if key not in stated_elsewhere
            },
        },
        "tool budget": (
            f"{episode.max_turns} messages that call tools or speak to a user, "
            f"{episode.max_turn_calls} calls in one"
        ),
        "scaffold": f"the program {list(agent.program)}" if agent.plays else scaffold,
        "attempts": f"{suite.config.attempts} at temperature {suite.config.temperature:g}",
        "evaluator": f"{type(suite.family).__module__}: {suite.family.headline} of official_scores",
        "failure recovery": recovery,
    }
