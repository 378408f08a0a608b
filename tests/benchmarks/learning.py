"""Does GRPO add to supervised fine-tuning, on entities the policy never saw?

    python -m tests.benchmarks.learning --seeds 3 --workers 2

Arms, each a run of the profile tiny up to `evaluate` (one thread each, `--workers` at a time):

    seed-S             the profile as it is
    adamw              seed 0 with AdamW for reading and warm start: what Muon adds
    names-kept         seed 0 with the names of demonstrations as they are: what renaming adds
    long-sft           seed 0, three times the SFT steps (no GRPO): EM against SFT steps
    observations       seed 0 with the tool's tokens left in the loss
    filter-S           seeds 0 and 1 again with a schedule of 60 GRPO steps, no evaluation
    no-filter-S        the same without the curriculum filter: rollouts to the same dev EM
    trajectories-N     seed 0 with N teacher trajectories (100, 300, 3000; 60 GRPO steps)

A finished arm keeps its result, with the commit it came from, under --out, and a killed arm goes
on where it stood. The last line is one JSON object of the headline figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.arms import run_all
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import commit
from tests.benchmarks.learning_figures import headline, print_report

TINY = "pipelines/profiles/tiny.toml"


class Arm(NamedTuple):
    """One run: overrides of the profile, and the run whose artifacts it starts from."""

    name: str
    overrides: tuple[str, ...]
    parent: str = ""
    last_stage: str = "evaluate"


SHORT = "training.steps=60"
"""GRPO steps of the arms that are read against seed-0 at the same step or the same level."""


def planned_arms(seeds: int) -> list[Arm]:
    """All arms, parents first."""
    arms = [Arm(f"seed-{seed}", (f"seed={seed}",)) for seed in range(seeds)]
    adamw = (
        "policy.prestage.optimizer=adamw",
        "warm_start.optimizer.kind=adamw",
        "warm_start.optimizer.learning_rate=5e-4",  # at which it was tuned
    )
    arms += [
        Arm("adamw", ("seed=0", SHORT, *adamw), "seed-0"),
        Arm("names-kept", ("seed=0", SHORT, "warm_start.renamed_share=0"), "seed-0"),
        Arm("observations", ("seed=0", "training.train_on_observations=true"), "seed-0"),
    ]
    for seed in range(min(seeds, 2)):
        short = (f"seed={seed}", SHORT)
        without = (*short, "curriculum.enabled=false", "curriculum.preference=even")
        arms.append(Arm(f"filter-{seed}", short, f"seed-{seed}", "train"))
        arms.append(Arm(f"no-filter-{seed}", without, f"seed-{seed}", "train"))
    arms += [
        Arm(f"trajectories-{count}", ("seed=0", SHORT, f"synthesis.trajectories={count}"), "seed-0")
        for count in (100, 300, 3000)
    ]
    arms.append(Arm("long-sft", ("seed=0", "warm_start.steps=720"), "seed-0", "warm_start"))
    return arms


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--profile", type=Path, default=Path(TINY))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/learning"))
    parser.add_argument("--only", nargs="*", help="names of arms; default all")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    arms = {arm.name: arm for arm in planned_arms(options.seeds)}
    if options.arm:
        run_arm(arms[options.arm], options.profile, options.out)
        return
    wanted = [arms[name] for name in options.only] if options.only else list(arms.values())
    missing = [arm.name for arm in wanted if not _result_path(options.out, arm.name).is_file()]
    run_all(
        {name: _command(name, options) for name in missing},
        options.out,
        workers=options.workers,
        can_start=lambda name: not arms[name].parent or _shared(options.out, arms[name]),
    )
    results = read_results(options.out, arms)
    print_report(options.out, results)
    print(json.dumps(headline(options.out, results)))


def _shared(out: Path, arm: Arm) -> bool:
    """Whether the parent has published what the arm starts from."""
    return (out / arm.parent / "warm_policy").is_dir()


def _command(name: str, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.learning", "--arm", name, "--seeds", str(options.seeds)]
    return [*command, "--out", str(options.out), "--profile", str(options.profile)]


def run_arm(arm: Arm, profile_path: Path, out: Path) -> None:
    """One arm in this process, up to its last stage."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.config import load_profile

    fixed = ["threads=1", "evaluation.sampled_questions=1"]  # pass@k is not asked here
    profile = load_profile(profile_path, [*fixed, *arm.overrides])
    prepare_torch(profile.threads)
    run_dir = out / arm.name
    run_dir.mkdir(parents=True, exist_ok=True)
    if arm.parent:
        _inherit(out / arm.parent, run_dir)
    run_chain(profile, run_dir, arm.last_stage)
    result = {
        "arm": arm.name,
        "overrides": list(arm.overrides),
        "commit": commit(),
        "timings": json.loads((run_dir / "timings.json").read_bytes()),
    }
    partial = _result_path(out, arm.name).with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1))
    partial.replace(_result_path(out, arm.name))


def _inherit(parent: Path, run_dir: Path) -> None:
    """Copy the parent's artifacts; the runner keeps those that the arm's settings leave current."""
    for name in ("knowledge", "synthetic", "accepted", "base_policy", "warm_policy", "curriculum"):
        if (parent / name).is_dir() and not (run_dir / name).exists():
            partial = run_dir / f".{name}.copy"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(parent / name, partial)
            partial.rename(run_dir / name)


def read_results(out: Path, arms: dict[str, Arm]) -> dict[str, dict[str, object]]:
    """Results of the finished arms by name."""
    paths = {name: _result_path(out, name) for name in arms}
    return {name: json.loads(path.read_bytes()) for name, path in paths.items() if path.is_file()}


def _result_path(out: Path, name: str) -> Path:
    return out / f"{name}.json"


if __name__ == "__main__":
    main()
