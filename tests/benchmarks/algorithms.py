"""Does every preset learn, from the same warm start and on the same budget?

    python -m tests.benchmarks.algorithms --run runs/demo --seeds 2 --workers 2 \\
        --set training.tasks_per_step=8 training.optimizer.learning_rate=2.5e-4 \\
              training.optimizer.warmup_share=0.25

Starts from the warm policy and the curriculum of a finished run; an arm is a preset and a seed, in
a process of its own, on one thread. For each preset: held-out EM after training less that of the
warm start (paired over the questions, all seeds together, 95 % bootstrap interval), seconds of
training, peak memory. The weights judged are those of the best dev EM. A finished arm keeps its
result and the commit under --out. The last line is one JSON object.

A preset is run as it is shipped: what it sets outside of [training.algorithm] comes before the
profile's value and before --set. The table says which learn as they are, not which is best when
tuned.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.reference import field_json
from espalier.algorithms.presets import PRESETS
from espalier.evaluation.estimates import paired_difference
from tests.benchmarks.arms import Arm, add_settings
from tests.benchmarks.keeping import keep, kept, provenance

RESAMPLES = 10_000
EVALUATE_EVERY = 8
WARM = "warm"
"""The arm without training."""
REASONS: Mapping[str, str] = {
    "turn_credit": "it compares all turns of a group, and the only reward comes with the last: "
    "discounted, the early turns of right episodes lie below the group's mean and are unlearned; "
    'compared = "same_turn" is for such rewards',
    "dpo": "it orders its pairs of whole attempts hardly better than chance at 2e-5, however many "
    "pairs a group gives; at 5e-5 the tiny policy unlearned",
    "grpo_pass_k": "it pays the best of a group its lead over the second best: with rewards of 0 "
    "or 1 nothing, unless one alone of 16 is right, and then by luck more often than not",
    "starpo_s": "it keeps the quarter of the groups that vary most: of 8 tasks two groups, too few "
    "at this rate; with training.tasks_per_step=32 it learns",
}
"""Why a preset should not learn here."""


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        run_arm(Arm.named(options.arm), options)
        return
    presets = options.presets or sorted(PRESETS)
    arms = [Arm(WARM, 0)]
    arms += [Arm(preset, seed) for seed in range(options.seeds) for preset in presets]
    missing = [arm for arm in arms if kept(_result(options.out, arm), asked(arm, options)) is None]
    run_all(missing, options)
    report(arms, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--profile", type=Path, default=Path("pipelines/profiles/tiny.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/algorithms"))
    parser.add_argument("--presets", nargs="*")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    add_settings(parser)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(arms: list[Arm], options: argparse.Namespace) -> None:
    """Run the arms in processes of their own, at most `workers` at a time."""
    options.out.mkdir(parents=True, exist_ok=True)
    waiting, running = list(arms), {}
    while waiting or running:
        for arm, process in list(running.items()):
            if process.poll() is not None:
                del running[arm]
                said = "failed" if process.returncode else "finished"
                print(f"{said} {arm.name}", flush=True)
        if waiting and len(running) < options.workers:
            arm = waiting.pop(0)
            running[arm] = _start(arm, options)
        else:
            time.sleep(0.5)


def _start(arm: Arm, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.algorithms", "--arm", arm.name]
    for name in ("run", "profile", "out", "steps"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--set", *options.set]
    with (options.out / f"{arm.name}.log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """Train and judge one arm in this process."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.chain import STAGES
    from espalier.config import load_profile
    from espalier.environments import family_of
    from espalier.records import NullTracker, read_tasks
    from espalier.rollout.roller import Roller
    from espalier.training.checkpoint import CheckpointStore
    from espalier.training.parallel import Processes
    from espalier.training.rl.wiring import build_run

    settings = [f"seed={arm.seed}", f"training.steps={options.steps}", "threads=1"]
    settings += [f"training.evaluate_every={EVALUATE_EVERY}", *options.set]
    settings += shipped(arm.variant)
    profile = load_profile(options.profile, settings)
    prepare_torch(profile.threads)
    inputs = {name: options.run / name for name in STAGES["train"].inputs}
    work = options.out / f"{arm.name}.work"
    store = CheckpointStore(work, STAGES["train"].digest(profile))
    figures: dict[str, object] = {}
    with family_of(profile).environments(inputs["knowledge"]) as environments_over:
        trained = build_run(profile, inputs, store, Processes(), environments_over)
        if arm.variant != WARM:
            trained.loop.run(NullTracker())
            figures = {
                "seconds": trained.loop.seconds,
                "best_step": trained.loop.progress.best_step,
                "rollouts": trained.loop.progress.history[-1]["rollouts"],
            }
        questions = read_tasks(inputs["accepted"] / "tasks" / "heldout.jsonl")
        judge = Roller.local(trained.policy, environments_over("full"), profile)
        answers = judge.roll_out(questions, samples=1, temperature=0.0, seed=0)
    figures["right"] = [answer.is_right for answer in answers]
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    keep(_result(options.out, arm), asked(arm, options), [figures], provenance(profile.threads))


def shipped(variant: str) -> list[str]:
    """Overrides by which a profile trains with a preset as it is shipped."""
    if variant == WARM:
        return []
    elsewhere = PRESETS[variant].elsewhere.items()
    keys = [f"{key}={field_json(value)}" for key, value in elsewhere]
    return [*keys, f"training.algorithm.preset={variant}"]


def asked(arm: Arm, options: argparse.Namespace) -> dict[str, object]:
    """What makes two results comparable."""
    settings = [*options.set, *shipped(arm.variant)]
    named = {"run": str(options.run), "profile": str(options.profile), "set": settings}
    return {**named, "steps": options.steps}


def report(arms: list[Arm], options: argparse.Namespace) -> None:
    """A line a preset, best first."""
    found = {
        arm: rows[0]
        for arm in arms
        if (rows := kept(_result(options.out, arm), asked(arm, options)))
    }
    warm = found.pop(Arm(WARM, 0))["right"]
    print(f"warm start: EM {100 * sum(warm) / len(warm):.1f} of {len(warm)} held-out questions")
    rows = [
        summed_up(
            preset, [figures for arm, figures in found.items() if arm.variant == preset], warm
        )
        for preset in dict.fromkeys(arm.variant for arm in found)
    ]
    learned = [row["preset"] for row in rows if row["gain"][1] > 0]
    print(f"learned: {len(learned)} of {len(rows)}")
    print(f"{'preset':<22} seeds  EM gain [95%]              s  rollouts  peak MB")
    for row in sorted(rows, key=lambda row: -row["gain"][0]):
        mean, low, high = row["gain"]
        print(
            f"{row['preset']:<22} {row['seeds']:>5}  {mean:+6.1f} [{low:+5.1f}, {high:+5.1f}]"
            f"  {row['seconds']:>7.0f}  {row['rollouts']:>8.0f}  {row['peak_mb']:>7.0f}"
        )
        if low <= 0:
            print(f"    {row['reason']}")
    print(json.dumps(rows))


def summed_up(preset: str, found: list[dict[str, Any]], warm: list[bool]) -> dict[str, Any]:
    """One line of the table: all seeds of a preset together."""
    trained = [right for figures in found for right in figures["right"]]
    gain = paired_difference(
        trained, warm * len(found), resamples=RESAMPLES, confidence=0.95, seed=0
    )
    mean = {k: sum(f[k] for f in found) / len(found) for k in ("seconds", "rollouts")}
    return {
        "preset": preset,
        "seeds": len(found),
        "gain": [100 * value for value in gain],
        "reason": "" if gain[1] > 0 else REASONS.get(preset, "not explained"),
        **mean,
        "peak_mb": max(figures["peak_mb"] for figures in found),
    }


def _result(out: Path, arm: Arm) -> Path:
    return out / f"{arm.name}.json"


if __name__ == "__main__":
    main()
