"""An adapter (LoRA) beside all weights: what is learnt in as many steps, and what it costs.

    python -m tests.benchmarks.adapters

Both train the profile's policy by its own chain, from the same data, at three learning rates each:
by imitation first, then, the best rate of each kind alone, by a few steps of reinforcement
learning. Its rate there is the profile's ratio of the two stages. The best rate is that with the
most dev questions answered, of equal ones the lowest. Seconds and peak memory are those of the
stage, in a process of its own with the profile's threads and nothing beside it; the checkpoint is
what a killed run goes on from. Six arms by imitation and two by reinforcement learning take about
45 minutes on two cores. The last line is one JSON object.

A finished arm keeps its result with its commit, and a killed one goes on where it stood. What
another commit or profile left in --out is refused, unless --any-commit counts it or --again deletes
it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from espalier.records import NullTracker
from tests.benchmarks.arms import add_arm_options, asked, kept_arm, run_all
from tests.benchmarks.chain_runs import begin_from, run_chain
from tests.benchmarks.keeping import commit, keep, provenance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from espalier.config import Profile

RATES = {"lora": (3e-4, 1e-3, 3e-3), "full": (3e-5, 1e-4, 3e-4)}
"""Peaks of the warm start's learning rate; ten times more for an adapter."""
IMITATION, REINFORCEMENT = "warm_start", "train"
RESULT_FOLDERS = {IMITATION: "warm_policy", REINFORCEMENT: "trained_policy"}


class Arm(NamedTuple):
    """What is trained, at which rate of the warm start, up to which stage."""

    weights: str
    rate: float
    stage: str = IMITATION

    @property
    def name(self) -> str:
        """Of its result's file."""
        return f"{self.stage}-{self.weights}-{self.rate:g}"

    @classmethod
    def named(cls, name: str) -> Arm:
        """The arm of that name."""
        stage, weights, rate = name.split("-", 2)
        return cls(weights, float(rate), stage)


class CheckpointSize(NullTracker):
    """Notes how large the newest checkpoint of a stage is."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.mib = 0.0

    def metrics(self, values: Mapping[str, float], *, step: int | None = None) -> None:
        """Look at the files of checkpoints; they go when the stage is published."""
        del values, step
        sizes = [path.stat().st_size for path in self._run_dir.glob(".*.work/latest.pt")]
        self.mib = max(self.mib, sum(sizes) / 2**20)


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    run_data(options)
    arms = [Arm(weights, rate) for weights, rates in RATES.items() for rate in rates]
    _run_missing(arms, options)
    best = [best_of(weights, options)._replace(stage=REINFORCEMENT) for weights in RATES]
    _run_missing(best, options)
    report(arms, best, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--profile", type=Path, default=Path("pipelines/profiles/laptop.toml"), help="with LoRA"
    )
    parser.add_argument("--imitation-steps", type=int, default=24)
    parser.add_argument("--steps", type=int, default=8, help="of reinforcement learning")
    parser.add_argument("--dev-questions", type=int, default=200)
    add_arm_options(parser, "runs/benchmarks/adapters")
    return parser.parse_args()


def profile_of(arm: Arm, options: argparse.Namespace) -> Profile:
    """The profile of an arm."""
    from espalier.config import load_profile

    given = load_profile(options.profile)
    ratio = given.training.optimizer.learning_rate / given.warm_start.optimizer.learning_rate
    steps = {"warm_start": options.imitation_steps, "training": options.steps}
    values = load_profile(
        options.profile,
        [
            *(f"{name}.steps={count}" for name, count in steps.items()),
            *(f"{name}.evaluate_every={count}" for name, count in steps.items()),
            *(f"{name}.dev_questions={options.dev_questions}" for name in steps),
            f"warm_start.optimizer.learning_rate={arm.rate}",
            f"training.optimizer.learning_rate={ratio * arm.rate}",
            *options.set,
        ],
    ).model_dump(mode="json")
    if arm.weights == "full":
        values["policy"].pop("lora")
    return type(given).model_validate(values)


def run_data(options: argparse.Namespace) -> None:
    """Make the data that every arm copies."""
    run_chain(profile_of(Arm("lora", 1.0), options), options.out / "data", "validate")


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """One arm in this process, up to its stage."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    profile = profile_of(arm, options)
    prepare_torch(profile.threads)
    path = options.out / f"{arm.name}.json"
    begun = {"asked": asked(profile), "origin": {"commit": commit()}}
    path.with_suffix(".begun").write_text(json.dumps(begun))
    run_dir = path.with_suffix("")
    source = options.out / "data"
    if arm.stage == REINFORCEMENT:
        source = options.out / arm._replace(stage=IMITATION).name
    begin_from(source, run_dir)
    size = CheckpointSize(run_dir)
    run_chain(profile, run_dir, arm.stage, tracker=size)
    keep(path, asked(profile), [result_of(arm, run_dir, size.mib)], provenance(profile.threads))
    path.with_suffix(".begun").unlink()


def result_of(arm: Arm, run_dir: Path, checkpoint_mib: float) -> dict[str, Any]:
    """What is kept of an arm."""
    import pyarrow.parquet as pq

    folder = run_dir / RESULT_FOLDERS[arm.stage]
    looks = pq.read_table(folder / "history.parquet").column("dev_em").to_pylist()
    timings = json.loads((run_dir / "timings.json").read_bytes())[arm.stage]
    # an adapter's policy also holds the weights that it was trained beside
    adapter = folder / "policy" / "adapter"
    learnt = adapter if adapter.is_dir() else folder / "policy"
    return {
        "dev_em": [look for look in looks if look is not None][-1],
        "seconds": timings["seconds"],
        "peak_mib": timings["peak_rss_mb"],
        "checkpoint_mib": checkpoint_mib,
        "learnt_mib": sum(path.stat().st_size for path in learnt.glob("*.safetensors")) / 2**20,
    }


def kept_result(arm: Arm, options: argparse.Namespace) -> dict[str, Any] | None:
    """See `kept_arm`."""
    path = options.out / f"{arm.name}.json"
    return kept_arm(path, lambda: profile_of(arm, options), options)


def _run_missing(arms: list[Arm], options: argparse.Namespace) -> None:
    missing = [arm for arm in arms if kept_result(arm, options) is None]
    run_all({arm.name: _command(arm, options) for arm in missing}, options.out, workers=1)


def _command(arm: Arm, options: argparse.Namespace) -> list[str]:
    asked_of = {
        "--arm": arm.name, "--profile": options.profile, "--out": options.out,
        "--imitation-steps": options.imitation_steps, "--steps": options.steps,
        "--dev-questions": options.dev_questions,
    }  # fmt: skip
    given = [str(part) for pair in asked_of.items() for part in pair]
    return ["tests.benchmarks.adapters", *given, "--set", *options.set]


def best_of(weights: str, options: argparse.Namespace) -> Arm:
    """The arm of the rate that answered most dev questions by imitation."""
    arms = [Arm(weights, rate) for rate in RATES[weights]]
    return max(arms, key=lambda arm: (kept_result(arm, options) or {})["dev_em"])


def report(arms: list[Arm], best: list[Arm], options: argparse.Namespace) -> None:
    """A line an arm, and the JSON line."""
    print("stage       weights    rate  dev EM  seconds  peak MiB  checkpoint MiB  learnt MiB")
    headline: dict[str, Any] = {}
    for arm in [*arms, *best]:
        result = kept_result(arm, options)
        assert result is not None
        headline[arm.name] = result
        print(
            f"{arm.stage:<11} {arm.weights:<7} {arm.rate:7g}  {100 * result['dev_em']:6.1f}  "
            f"{result['seconds']:7.0f}  {result['peak_mib']:8.0f}  {result['checkpoint_mib']:14.1f}"
            f"  {result['learnt_mib']:10.1f}"
        )
    print(json.dumps(headline))


if __name__ == "__main__":
    main()
