"""Does every preset learn, from the same warm start and on the same budget?

    python -m tests.benchmarks.algorithms --run runs/demo --steps 30 --seeds 2 --workers 2

Starts from the warm policy and the curriculum of a finished run; an arm is a preset and a seed, in
a process of its own, on one thread. For each preset: held-out EM after training less that of the
warm start (paired over the questions, all seeds together, 95 % bootstrap interval), seconds of
training, peak memory. A finished arm keeps its result under --out. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from espalier.algorithms.presets import PRESETS

RESAMPLES = 10_000


class Arm(NamedTuple):
    """One preset under one seed."""

    preset: str
    seed: int

    @property
    def name(self) -> str:
        """Of its result's file."""
        return f"{self.preset}-{self.seed}"


def main() -> None:
    """Run what is missing, then print the table."""
    options = _options()
    if options.arm:
        preset, _, seed = options.arm.rpartition("-")
        run_arm(Arm(preset, int(seed)), options)
        return
    presets = options.presets or sorted(PRESETS)
    arms = [Arm(preset, seed) for seed in range(options.seeds) for preset in presets]
    run_all([arm for arm in arms if not _result(options.out, arm).is_file()], options)
    report(arms, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--profile", type=Path, default=Path("pipelines/profiles/laptop.toml"))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/algorithms"))
    parser.add_argument("--presets", nargs="*")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
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
            running[waiting[0]] = _start(waiting.pop(0), options)
        else:
            time.sleep(0.5)


def _start(arm: Arm, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.algorithms", "--arm", arm.name]
    for name in ("run", "profile", "out", "steps"):
        command += [f"--{name}", str(getattr(options, name))]
    with (options.out / f"{arm.name}.log").open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def run_arm(arm: Arm, options: argparse.Namespace) -> None:
    """Train and judge one arm in this process."""
    from espalier.steps.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.artifacts import NullTracker
    from espalier.config import load_profile
    from espalier.knowledge.search import SearchTool
    from espalier.rollout.roller import Roller
    from espalier.tasks import read_tasks
    from espalier.training.checkpoint import CheckpointStore
    from espalier.training.parallel import Processes
    from espalier.training.rl.stage import Inputs
    from espalier.training.rl.wiring import wired

    settings = [f"seed={arm.seed}", f"training.steps={options.steps}", "threads=1"]
    settings += [f"training.algorithm.preset={arm.preset}", "training.evaluate_every=10"]
    profile = load_profile(options.profile, settings)
    prepare_torch(profile.threads)
    names = ("knowledge", "accepted", "curriculum", "warm_policy")
    inputs = Inputs(**{name: options.run / name for name in names})
    work = options.out / f"{arm.name}.work"
    trained = wired(profile, inputs, CheckpointStore(work, "algorithms"), Processes())
    judge = Roller.local(
        trained.policy, SearchTool.open(inputs.knowledge, "full", profile.search), profile
    )
    questions = read_tasks(inputs.accepted / "tasks" / "heldout.jsonl")

    def right() -> list[bool]:
        answers = judge.roll_out(questions, samples=1, temperature=0.0, seed=0)
        return [answer.reward["outcome"] > 0 for answer in answers]

    warm = right()
    trained.loop.run(NullTracker())
    result = {
        "warm": warm,
        "trained": right(),
        "seconds": trained.loop.seconds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "best_step": trained.loop.best_step,
        "rollouts": trained.loop.history[-1]["rollouts"],
    }
    _result(options.out, arm).write_text(json.dumps(result))


def report(arms: list[Arm], out: Path) -> None:
    """A line a preset, best first."""
    from espalier.evaluation.intervals import paired_difference

    rows = []
    for preset in dict.fromkeys(arm.preset for arm in arms):
        paths = [_result(out, arm) for arm in arms if arm.preset == preset]
        found = [json.loads(path.read_bytes()) for path in paths if path.is_file()]
        if not found:
            continue
        trained = [x for result in found for x in result["trained"]]
        warm = [x for result in found for x in result["warm"]]
        gain = paired_difference(trained, warm, resamples=RESAMPLES, confidence=0.95, seed=0)
        mean = {k: sum(r[k] for r in found) / len(found) for k in ("seconds", "rollouts")}
        rows.append(
            {
                "preset": preset,
                "seeds": len(found),
                "gain": [100 * value for value in gain],
                "seconds": mean["seconds"],
                "rollouts": mean["rollouts"],
                "peak_mb": max(result["peak_mb"] for result in found),
            }
        )
    print(f"{'preset':<22} seeds  EM gain [95%]              s  rollouts  peak MB")
    for row in sorted(rows, key=lambda row: -row["gain"][0]):
        mean, low, high = row["gain"]
        print(
            f"{row['preset']:<22} {row['seeds']:>5}  {mean:+6.1f} [{low:+5.1f}, {high:+5.1f}]"
            f"  {row['seconds']:>7.0f}  {row['rollouts']:>8.0f}  {row['peak_mb']:>7.0f}"
        )
    print(json.dumps(rows))


def _result(out: Path, arm: Arm) -> Path:
    return out / f"{arm.name}.json"


if __name__ == "__main__":
    main()
