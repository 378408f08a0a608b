"""Ways to train a family beside its profile's own: further settings, and who pays the outcome.

    plain     the profile as it stands
    phases    new tasks from failed ones at each refresh of the curriculum, and a replay buffer of
              what is neither known by heart nor out of reach; the family's rule pays
    webrl     the same, and an outcome reward model pays in the rule's place (Qi et al. 2024,
              arXiv:2411.02337); the rule judges dev and held-out tasks alone

The algorithm is the profile's, and so is the number of steps. WebRL's own actor-critic is
`--set training.algorithm.preset=ppo training.replay.successes_only=true self_play.value=critic`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from espalier.config import Profile


class Recipe(NamedTuple):
    """What differs from the profile."""

    settings: tuple[str, ...] = ()
    is_paid_by_model: bool = False


_PHASES = (
    "self_play.name=webrl",
    "self_play.posed_tasks=32",  # tried four times each: an eighth of what ten steps sample
    "training.replay.capacity=120",
    "training.replay.perplexity_window=[1.05, 2.0]",  # WebRL's, section 3.3
)
RECIPES = {
    "plain": Recipe(),
    "phases": Recipe(_PHASES),
    "webrl": Recipe(_PHASES, is_paid_by_model=True),
}
_PAID_BY_RULE = {"shop": ("environment.score_reward=0.0",)}
"""Family -> what its environment may not pay where a model is to take the rule's place."""


def settings_of(recipe: str, family: str) -> tuple[str, ...]:
    """Settings of a recipe for a family."""
    chosen = RECIPES[recipe]
    return (*chosen.settings, *(_PAID_BY_RULE.get(family, ()) if chosen.is_paid_by_model else ()))


def fitted_outcome_model(profile: Profile, run_dir: Path, path: Path) -> Path:
    """An outcome reward model of the run's warm policy, which is fitted where it is not there."""
    from espalier.records import NullTracker
    from espalier.training.reward_models.fitting import INPUTS, fit_reward_model

    if not (path / "run.json").is_file():
        fit_reward_model(
            profile, {name: run_dir / name for name in INPUTS}, path, "outcome", NullTracker()
        )
    return path


def recipe_figures(run_dir: Path, outcome_model: Path | None) -> dict[str, Any]:
    """What a recipe added to a finished run; nothing of a plain one."""
    found: dict[str, Any] = {}
    phases = run_dir / "trained_policy" / "posed" / "phases.json"
    if phases.is_file():
        listed = json.loads(phases.read_bytes())
        found |= {name: sum(one[name] for one in listed) for name in ("failed", "posed", "kept")}
    if outcome_model is not None:
        history = pq.read_table(run_dir / "trained_policy" / "history.parquet").to_pylist()
        found["outcome_model"] = json.loads((outcome_model / "run.json").read_bytes())
        found["agreement_in_training"] = history[-1]["outcome_model/agreement"]
    return found


def recipe_lines(name: str, result: dict[str, Any]) -> list[str]:
    """What a recipe did in an arm, in words; nothing of a plain one."""
    lines: list[str] = []
    if "posed" in result:
        lines.append(f"{name}: of {result['posed']} tasks proposed {result['kept']} were kept")
    if model := result.get("outcome_model"):
        agreed, later = 100 * model["agreement"], 100 * result["agreement_in_training"]
        lines.append(
            f"{name}: the outcome model agrees with the rule on {agreed:.0f} % of "
            f"{model['dev_attempts']:.0f} dev attempts (AUC {model['auc']:.2f}), in training on "
            f"{later:.0f} %"
        )
    return lines
