"""Does the tiny policy learn the same search tasks in two dialects?

    python -m tests.benchmarks.dialects --seeds 3 --workers 2

An arm is a dialect and a seed: the profile tiny with a shorter schedule of reinforcement learning
(`SETTINGS`), up to `evaluate`, in a process of its own on one thread. Both dialects of a seed share
the knowledge; questions are the same, as they are drawn before anything is written in a dialect.

The table has, for each arm, held-out EM of the warm start and of the trained policy, the gain with
its 95 % interval (paired over the questions; all seeds of a dialect together on the last lines),
and how many turns of training and evaluation had other tokens than the chat template gives for the
whole conversation. A killed arm goes on where it stood, and a finished one keeps its result with
its commit under --out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from espalier.evaluation.estimates import Interval
from tests.benchmarks.arms import POLICIES, Arm, add_settings, result_of, run_all, together
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import keep, kept, provenance

PROFILE = Path("pipelines/profiles/tiny.toml")
DIALECTS = ("tags", "hermes")
SETTINGS = (
    "threads=1",
    "synthesis.train_tasks=3000",
    "synthesis.dev_tasks=100",
    "synthesis.heldout_tasks=550",
    "policy.prestage.steps=500",
    "episode.max_tokens=384",  # a call in JSON is longer than one between tags
    "episode.max_turn_tokens=64",
    "warm_start.steps=160",
    "warm_start.evaluate_every=40",
    "warm_start.dev_questions=100",
    "training.steps=32",
    "training.tasks_per_step=8",
    "training.evaluate_every=8",
    "training.dev_questions=100",
    "evaluation.sampled_questions=1",  # pass@k is not asked here
    "rollout.compare_every=1",
)
"""What differs from the profile, in both dialects."""


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    arms = [Arm(dialect, seed) for seed in range(options.seeds) for dialect in DIALECTS]
    missing = {arm.name: arm for arm in arms if _kept_result(arm, options) is None}
    run_all(
        {name: _command(arm, options) for name, arm in missing.items()},
        options.out,
        workers=options.workers,
        can_start=lambda name: (
            not (lender := _lender(missing[name])) or (options.out / lender / "knowledge").is_dir()
        ),
    )
    report(arms, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/dialects"))
    add_settings(parser)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser.parse_args()


def _command(arm: Arm, options: argparse.Namespace) -> list[str]:
    command = ["tests.benchmarks.dialects", "--arm", arm.name]
    command += ["--profile", str(options.profile), "--out", str(options.out)]
    return [*command, "--set", *options.set]


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """One arm in this process, up to `evaluate`."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.config import load_profile

    named = [f"seed={arm.seed}", f"policy.dialect={arm.variant}"]
    profile = load_profile(options.profile, [*SETTINGS, *named, *options.set])
    prepare_torch(profile.threads)
    run_dir = options.out / arm.name
    run_dir.mkdir(parents=True, exist_ok=True)
    if (lender := _lender(arm)) and not (run_dir / "knowledge").is_dir():
        partial = run_dir / ".knowledge.copy"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(options.out / lender / "knowledge", partial)
        partial.rename(run_dir / "knowledge")
    run_chain(profile, run_dir, "evaluate")
    result = result_of(run_dir)
    keep(_result_path(arm, options.out), asked(options), [result], provenance(profile.threads))


def _lender(arm: Arm) -> str:
    """Name of the arm whose knowledge it takes; empty where it reads the source itself."""
    return "" if arm.variant == DIALECTS[0] else Arm(DIALECTS[0], arm.seed).name


def report(arms: list[Arm], options: argparse.Namespace) -> None:
    """A line an arm, a line a dialect with all its seeds, and the JSON line."""
    results = {arm: rows[0] for arm in arms if (rows := _kept_result(arm, options))}
    print("arm          n  untrained  warm start  trained   gain [95%]              token_drift")
    for arm, result in results.items():
        em = (100 * result["em"][name] for name in POLICIES)
        low, high = result["gain"]["ci95"]
        gain = Interval(result["gain"]["em"], low, high)
        print(_line(arm.name, len(result["right"]["trained"]), em, gain, result))
    headline: dict[str, Any] = {}
    for dialect in DIALECTS:
        found = [result for arm, result in results.items() if arm.variant == dialect]
        if found:
            headline[dialect] = together(found)
            one = headline[dialect]
            em = (100 * one["em"][name] for name in POLICIES)
            print(_line(f"{dialect}, all", one["n"], em, Interval(*one["gain"]), one))
    print(json.dumps(headline))


def _line(name: str, n: int, em: Any, gain: Interval, drift: dict[str, Any]) -> str:
    mean, low, high = (100 * value for value in gain)
    untrained, warm, trained = em
    return (
        f"{name:<11} {n:>4}  {untrained:>8.1f}  {warm:>10.1f}  {trained:>7.1f}  "
        f"{mean:+6.1f} [{low:+5.1f}, {high:+5.1f}]  "
        f"{drift['token_drift']} of {drift['compared_turns']} turns"
    )


def asked(options: argparse.Namespace) -> dict[str, object]:
    """What makes a kept result the answer to what is asked now."""
    return {"profile": options.profile.read_text(), "settings": [*SETTINGS, *options.set]}


def _kept_result(arm: Arm, options: argparse.Namespace) -> list[dict[str, Any]] | None:
    return kept(_result_path(arm, options.out), asked(options))


def _result_path(arm: Arm, out: Path) -> Path:
    return out / f"{arm.name}.json"


if __name__ == "__main__":
    main()
