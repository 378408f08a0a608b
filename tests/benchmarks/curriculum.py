"""Does the choice of tasks pay? Rollouts to equal dev EM, from one warm start for each seed.

    python -m tests.benchmarks.curriculum --seeds 3 --workers 2
    python -m tests.benchmarks.curriculum --seeds 1 --arms uniform predicted     (two arms)
    python -m tests.benchmarks.curriculum --seeds 2 --first-seed 3 --arms uniform single --steps 40

Arms, each a run of the stage `train` on one thread, of as many steps (--steps), which are half as
large in the last three arms:

    uniform      all tasks alike, the default algorithm with `filters = []`
    dynamic      all tasks alike, the default algorithm as it is, which draws other tasks in the
                 place of groups of equal rewards
    patterns     the same, all patterns alike and then their tasks
    band         tasks inside the band of pass rates, by the preference of the profile, screened
    kinds        the same, all kinds of questions alike
    predicted    tasks by what they are expected to tell, screened
    frontier     tasks never tried of the patterns that are solved now and then, screened
    eased        uniform, with a learning rate that rises over a fifth of the steps
    half         eased, with half of the tasks in a step
    pairs        eased, with two rollouts a task, and as many rollouts in a step as half has
    single       eased, with one rollout a task and as many in a step; paid by what was predicted
                 of the task (SPO, arXiv:2509.13232)

The stages up to the curriculum filter are run once a seed. Rollouts are all that were sampled:
screened and dropped groups, and the curriculum filter's where the arm reads its pass rates. The
level is the best dev EM that the weakest arm of a seed reaches; between two evaluations rollouts
are interpolated. A perfect and free filter would sample the groups with variance alone: their share
of an arm's rollouts is beside it. `curves.csv` and `curves.svg` in --out have every evaluation.

A finished arm keeps its result with its commit in --out. A killed one goes on where it stood. What
another commit or other settings left there is refused, unless --any-commit counts it or --again
deletes it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from tests.benchmarks.arms import Arm, add_arm_options, asked, kept_arm, run_all
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.curriculum_figures import report
from tests.benchmarks.keeping import commit, keep, provenance

if TYPE_CHECKING:
    from espalier.config import Profile

BASE = "base"
"""The stages that a seed's arms share."""
_EVEN = ("curriculum.preference=even",)
"""A preference is the band's alone."""
_UNIFORM = (*_EVEN, "curriculum.enabled=false", "training.algorithm.filters=[]")
_EASED = (*_UNIFORM, "training.optimizer.warmup_share=0.2")
"""Small steps are noisy, and Adam's first ones have no estimate of that yet."""
ARMS: Mapping[str, tuple[str, ...]] = {
    "uniform": _UNIFORM,
    "dynamic": (*_EVEN, "curriculum.enabled=false"),
    "patterns": (*_EVEN, "curriculum.draw=patterns", "curriculum.screening_rollouts=0"),
    "band": ("curriculum.draw=band",),
    "kinds": ("curriculum.draw=kinds",),
    "predicted": (*_EVEN, "curriculum.draw=predicted"),
    "frontier": (*_EVEN, "curriculum.draw=frontier"),
    "eased": _EASED,
    "half": _EASED,
    "pairs": _EASED,
    "single": (*_EASED, "training.algorithm.preset=spo"),
}
"""Name -> overrides of the profile."""

GROUP_SIZES: Mapping[str, int | None] = {"half": None, "pairs": 2, "single": 1}
"""Rollouts of a task in arms whose steps have half of the profile's rollouts; None is the
profile's own."""
_EVALUATED = "training.evaluate_every=5"
"""Of steps of the profile's size; twice as many in arms whose steps are half as large."""
READS_PASS_RATES = ("band", "kinds", "predicted", "frontier", "single")
"""Arms to which the curriculum filter's rollouts are counted."""
DEFAULT_ARMS = ("uniform", "dynamic", "patterns", "band", "predicted")


def main() -> None:
    """Run what is missing, then print the tables."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    arms = [Arm(way, seed) for seed in seeds for way in (BASE, *options.arms)]
    missing = [arm for arm in arms if kept_result(arm, options) is None]
    by_name = {arm.name: arm for arm in missing}
    run_all(
        {name: _command(arm, options) for name, arm in by_name.items()},
        options.out,
        workers=options.workers,
        can_start=lambda name: _can_start(by_name[name], options),
    )
    if not options.arms:  # the stages that they share were wanted alone
        return
    results = {
        arm: result
        for arm in arms
        if arm.variant != BASE and (result := kept_result(arm, options)) is not None
    }
    by_seed = {
        seed: {arm.variant: result for arm, result in results.items() if arm.seed == seed}
        for seed in seeds
    }
    report(by_seed, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=DEFAULT_ARMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    parser.add_argument("--steps", type=int, default=60, help="of RL, in an arm")
    parser.add_argument("--profile", type=Path, default=Path("pipelines/profiles/tiny.toml"))
    add_arm_options(parser, "runs/benchmarks/curriculum")
    return parser.parse_args()


def _command(arm: Arm, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.curriculum", "--arm", arm.name]
    for name in ("out", "profile", "steps"):
        command += [f"--{name}", str(getattr(options, name))]
    return [*command, "--set", *options.set]


def profile_of(arm: Arm, options: argparse.Namespace) -> Profile:
    """The profile of an arm."""
    from espalier.config import load_profile

    fixed = [f"seed={arm.seed}", "threads=1", f"training.steps={options.steps}"]
    own = [] if arm.variant == BASE else ARMS[arm.variant]
    settings = [_EVALUATED, *own, *options.set, *_sizes(arm, options)]
    return load_profile(options.profile, [*fixed, *settings])


def _sizes(arm: Arm, options: argparse.Namespace) -> list[str]:
    """Overrides of an arm of `GROUP_SIZES`."""
    from espalier.config import load_profile

    if arm.variant not in GROUP_SIZES:
        return []
    training = load_profile(options.profile, [_EVALUATED, *options.set]).training
    members = GROUP_SIZES[arm.variant] or training.group_size
    tasks = training.tasks_per_step * training.group_size // (2 * members)
    return [
        f"training.tasks_per_step={tasks}",
        f"training.group_size={members}",
        f"training.evaluate_every={2 * training.evaluate_every}",
    ]


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """One arm in this process."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    profile = profile_of(arm, options)
    prepare_torch(profile.threads)
    path = options.out / f"{arm.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = {"asked": asked(profile), "origin": {"commit": commit()}}
    path.with_suffix(".begun").write_text(json.dumps(begun))
    if arm.variant == BASE:
        run_chain(profile, options.out / arm.name, "filter_curriculum")
        result: dict[str, Any] = {}
    else:
        result = _trained(profile, arm, options)
    keep(path, asked(profile), [result], provenance(profile.threads))
    path.with_suffix(".begun").unlink()


def _trained(profile: Profile, arm: Arm, options: argparse.Namespace) -> dict[str, Any]:
    """Run `train` on the seed's stages; returns the arm's curve and figures."""
    from espalier.chain import STAGES
    from espalier.records import NullTracker

    stage, base = STAGES["train"], options.out / f"{BASE}-{arm.seed}"
    output = options.out / arm.name / stage.output
    started = time.perf_counter()
    if not output.is_dir():
        stage.run(profile, {name: base / name for name in stage.inputs}, output, NullTracker())
    judged = json.loads((base / "curriculum" / "rollouts.json").read_bytes())["rollouts"]
    before = judged if arm.variant in READS_PASS_RATES else 0
    warm_em = json.loads((output / "run.json").read_bytes())["start_dev_em"]
    rows = pq.read_table(output / "history.parquet").to_pylist()
    evaluated = [row for row in rows if row["dev_em"] is not None]
    sizes = [
        row["rollouts"] - former
        for row, former in zip(rows, [0, *(row["rollouts"] for row in rows)], strict=False)
    ]
    informative = sum(
        row["informative_share"] * size for row, size in zip(rows, sizes, strict=True)
    )
    return {
        "curve": [[before, warm_em]]
        + [[before + row["rollouts"], row["dev_em"]] for row in evaluated],
        "steps": len(rows),
        "rollouts": sum(sizes),
        "informative_share": informative / sum(sizes),
        "zero_variance_share": sum(row["zero_variance_share"] for row in rows) / len(rows),
        "dev_questions": profile.training.dev_questions,
        "seconds": time.perf_counter() - started,
    }


def _can_start(arm: Arm, options: argparse.Namespace) -> bool:
    return arm.variant == BASE or (options.out / f"{BASE}-{arm.seed}.json").is_file()


def kept_result(arm: Arm, options: argparse.Namespace) -> dict[str, Any] | None:
    """See `kept_arm`."""
    path = options.out / f"{arm.name}.json"
    return kept_arm(path, lambda: profile_of(arm, options), options)


if __name__ == "__main__":
    main()
