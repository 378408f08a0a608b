"""Does the tiny policy learn the tasks of a family by reinforcement learning?

    python -m tests.benchmarks.families customer_service --seeds 3
    python -m tests.benchmarks.families sql --dialect tags hermes
    python -m tests.benchmarks.families shop --recipe plain phases webrl

An arm is a seed (and a dialect, and a recipe of `tests.benchmarks.recipes`): the profile
pipelines/profiles/NAME.toml up to `evaluate`, in a process of its own on one thread. The untrained,
the warm-started and the trained policy answer the same held-out tasks, at least 500. The table has
a line an arm, with the time it took, and a line for all seeds with two 95 % intervals of the gain:
over the tasks, paired within their seed, and over seeds and tasks (resampling both). A recipe
beside the plain one has a line with the difference of their trained policies, paired by task. The
last line is one JSON object.

A finished arm keeps its result with its commit and the digest of its profile and data in --out. A
killed one goes on where it stood. What another commit or profile left there is refused, unless
--any-commit counts it or --again deletes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from espalier.evaluation.estimates import paired_difference
from tests.benchmarks.arms import (
    POLICIES,
    RESAMPLES,
    add_arm_options,
    asked,
    gain_over_seeds,
    kept_arm,
    result_of,
    run_all,
    together,
)
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import commit, keep, provenance
from tests.benchmarks.recipes import (
    RECIPES,
    fitted_outcome_model,
    recipe_figures,
    recipe_lines,
    settings_of,
)

if TYPE_CHECKING:
    from espalier.config import Profile

PROFILES = Path("pipelines/profiles")
LEAST_TASKS = 500
"""Held-out tasks below which a gain of a few points cannot be told from chance."""
BUDGET_MIN = 90
"""Minutes that all seeds of a family may take on one core."""
SETTINGS = ("threads=1", "evaluation.sampled_questions=1")  # pass@k is not asked here


class Arm(NamedTuple):
    """One family under one seed, in the profile's dialect or a named one, by one recipe."""

    seed: int
    dialect: str = ""
    recipe: str = "plain"

    @property
    def group(self) -> str:
        """What its seeds have in common, beside the profile; empty of plain ones."""
        recipe = "" if self.recipe == "plain" else self.recipe
        return "-".join(filter(None, (self.dialect, recipe)))

    @property
    def name(self) -> str:
        """Of its folder and its result's file."""
        return f"{self.group or 'seed'}-{self.seed}"

    @classmethod
    def named(cls, name: str) -> Arm:
        """The arm of that name."""
        group, _, seed = name.rpartition("-")
        parts = [] if group == "seed" else group.split("-")
        recipe = next((part for part in parts if part in RECIPES), "plain")
        return cls(int(seed), next((part for part in parts if part not in RECIPES), ""), recipe)


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    groups = [(name, recipe) for name in options.dialect or [""] for recipe in options.recipe]
    arms = [Arm(seed, *group) for group in groups for seed in range(options.seeds)]
    missing = [arm for arm in arms if kept_result(arm, options) is None]
    commands = {arm.name: _command(arm, options) for arm in missing}
    run_all(commands, folder(options), workers=options.workers)
    report(arms, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("profile", help=f"name of a profile in {PROFILES}, or its path")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dialect", nargs="*", default=[], help="default: the profile's own")
    parser.add_argument("--recipe", nargs="+", choices=RECIPES, default=["plain"])
    add_arm_options(parser, "runs/benchmarks/families")
    return parser.parse_args()


def folder(options: argparse.Namespace) -> Path:
    """Where the results of a profile are."""
    return options.out / Path(options.profile).stem


def _command(arm: Arm, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.families", options.profile, "--arm", arm.name]
    return [*command, "--out", str(options.out), "--set", *options.set]


def profile_of(arm: Arm, options: argparse.Namespace) -> Profile:
    """The profile of an arm, with at least 500 held-out tasks; an outcome model is not in it."""
    from espalier.config import load_profile

    path = Path(options.profile)
    path = path if path.suffix == ".toml" else PROFILES / f"{path}.toml"
    family = load_profile(path).environment.name
    settings = [*SETTINGS, *settings_of(arm.recipe, family), f"seed={arm.seed}", *options.set]
    if arm.dialect:
        settings.append(f"policy.dialect={arm.dialect}")
    profile = load_profile(path, settings)
    if profile.synthesis.heldout_tasks >= LEAST_TASKS:
        return profile
    return load_profile(path, [*settings, f"synthesis.heldout_tasks={LEAST_TASKS}"])


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """One arm in this process, up to `evaluate`."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    profile = profile_of(arm, options)
    prepare_torch(profile.threads)
    run_dir = folder(options) / arm.name
    path = folder(options) / f"{arm.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = {"asked": asked(profile), "origin": {"commit": commit()}}
    path.with_suffix(".begun").write_text(json.dumps(begun))
    played, model = profile, None
    if RECIPES[arm.recipe].is_paid_by_model:
        run_chain(profile, run_dir, "filter_curriculum")
        model = folder(options) / f"{arm.name}-outcome-model"
        played = paid_by(profile, fitted_outcome_model(profile, run_dir, model))
    run_chain(played, run_dir, "evaluate")
    result = result_of(run_dir) | recipe_figures(run_dir, model)
    keep(path, asked(profile), [result], provenance(profile.threads))
    path.with_suffix(".begun").unlink()


def paid_by(profile: Profile, outcome_model: Path) -> Profile:
    """`profile` with the outcome model in the rule's place."""
    values = profile.model_dump(mode="json")
    values["reward"]["outcome_model"] = {"model": str(outcome_model)}
    return type(profile).model_validate(values)


def kept_result(arm: Arm, options: argparse.Namespace) -> dict[str, Any] | None:
    """See `kept_arm`."""
    path = folder(options) / f"{arm.name}.json"
    return kept_arm(path, lambda: profile_of(arm, options), options)


def report(arms: list[Arm], options: argparse.Namespace) -> None:
    """A line an arm, a line for all seeds of a dialect or recipe, and the JSON line.

    Raises:
        SystemExit: an arm answered too few tasks for its gain to say anything.
    """
    results = {arm: result for arm in arms if (result := kept_result(arm, options))}
    print("arm             n  untrained  warm start  trained    gain [95%]             minutes")
    for arm, result in results.items():
        whole = together([result])
        print(_line(arm.name, whole, whole["gain"]) + f"  {minutes(result):8.1f}")
    for arm, result in results.items():
        for line in recipe_lines(arm.name, result):
            print(line)
    headline: dict[str, Any] = {"profile": Path(options.profile).stem}
    for group in dict.fromkeys(arm.group for arm in arms):
        found = [result for arm, result in results.items() if arm.group == group]
        headline[group or "gain"] = one = summary(found)
        name = f"{group or 'seeds'}, all"
        print(_line(name, one, one["gain"]) + f"  {one['minutes']:8.1f}  over the tasks")
        print(_line(name, one, one["gain_over_seeds"]) + f"  {'':8}  over seeds and tasks")
        if one["minutes"] > BUDGET_MIN:
            print(f"{name}: {one['minutes']:.0f} minutes, over the budget of {BUDGET_MIN}")
    headline |= recipes_beside_plain(results)
    print(json.dumps(headline))
    few = [
        arm.name for arm, found in results.items() if len(found["right"]["trained"]) < LEAST_TASKS
    ]
    if few:
        sys.exit(f"{', '.join(few)}: fewer than {LEAST_TASKS} held-out tasks; see the column n")


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What is quoted of all seeds of a dialect."""
    return {
        **together(results),
        "gain_over_seeds": list(gain_over_seeds(results)),
        "gain_of_seeds": [result["gain"]["em"] for result in results],
        "minutes": round(sum(map(minutes, results)), 1),
        "commits": sorted({result["commit"] for result in results}),
    }


def recipes_beside_plain(results: dict[Arm, dict[str, Any]]) -> dict[str, list[float]]:
    """Prints and returns what each recipe's trained policies answer beyond the plain ones'."""
    differences: dict[str, list[float]] = {}
    for group in dict.fromkeys(arm.group for arm in results if arm.recipe != "plain"):
        recipe_right: list[bool] = []
        plain_right: list[bool] = []
        for arm, result in results.items():
            plain = results.get(arm._replace(recipe="plain"))
            if arm.group == group and plain is not None:
                recipe_right += result["right"]["trained"]
                plain_right += plain["right"]["trained"]
        if not plain_right:
            continue
        found = paired_difference(
            recipe_right, plain_right, resamples=RESAMPLES, confidence=0.95, seed=0
        )
        differences[f"{group} over plain"] = list(found)
        mean, low, high = (100 * value for value in found)
        print(f"{group} over plain: {mean:+.1f} [{low:+.1f}, {high:+.1f}], paired by task")
    return differences


def minutes(result: dict[str, Any]) -> float:
    """What an arm took, all stages."""
    return sum(stage["seconds"] for stage in result["timings"].values()) / 60


def _line(name: str, whole: dict[str, Any], gain: list[float]) -> str:
    untrained, warm, trained = (100 * whole["em"][policy] for policy in POLICIES)
    mean, low, high = (100 * value for value in gain)
    return (
        f"{name:<12} {whole['n']:>5}  {untrained:>8.1f}  {warm:>10.1f}  {trained:>7.1f}  "
        f"{mean:+7.1f} [{low:+5.1f}, {high:+5.1f}]"
    )


if __name__ == "__main__":
    main()
