"""Is a killed run as good as one that was left alone?

    python -m tests.benchmarks.kills --kills 20 --seed 0

An undisturbed run of the profile gives the digests to reach. Then runs of the same profile are
killed with SIGKILL and started again by the same command, until all kills are spent: one inside
every stage first, the others at times uniform over a whole run. A line for each kill says which
stage it hit, how far into it, and which checkpoint it left. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from espalier.chain import CHAIN

_POLL_S = 0.02
KILLS_PER_RUN = 4
"""Uniform kills that one run has to bear before it may finish."""


@dataclass(frozen=True)
class Blow:
    """Where to kill: inside a stage after a share of its usual seconds, or at a time of the run."""

    stage: str | None
    share: float


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/kills"))
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    reference = options.out / "undisturbed"
    started = time.perf_counter()
    finish(start(options.profile, reference))
    usual_s = time.perf_counter() - started
    print(f"undisturbed run: {usual_s:.0f} s", flush=True)
    wanted = digests(reference)
    seconds = stage_seconds(reference)
    hits: list[dict[str, object]] = []
    equal = True
    for number, blows in enumerate(planned(options.kills, random.Random(options.seed))):
        if sum(bool(hit["killed"]) for hit in hits) >= options.kills:
            break
        run_dir = options.out / f"killed-{number}"
        for blow in blows:
            hits.append(strike(options.profile, run_dir, blow, seconds, usual_s))
            print_hit(len(hits), hits[-1])
        finish(start(options.profile, run_dir))
        same = digests(run_dir) == wanted
        verdict = "equal" if same else "DIFFER"
        print(f"run {number}: {len(blows)} kills, digests {verdict}", flush=True)
        equal = equal and same
    by_stage = {link.name: sum(hit["stage"] == link.name for hit in hits) for link in CHAIN}
    summary = {
        "benchmark": "kills",
        "kills": sum(bool(hit["killed"]) for hit in hits),
        "by_stage": by_stage,
        "every_stage_hit": all(by_stage.values()),
        "digests_equal": equal,
        "undisturbed_s": round(usual_s, 1),
    }
    print(json.dumps(summary))
    if not (equal and all(by_stage.values())):
        sys.exit(1)


def planned(kills: int, rng: random.Random) -> list[list[Blow]]:
    """One run that is killed inside every stage, then runs that are killed at uniform times.

    There are spare runs: a late blow may find that its run has ended.
    """
    first = [Blow(link.name, rng.uniform(0.05, 0.9)) for link in CHAIN][:kills]
    rest = [Blow(None, rng.random()) for _ in range(2 * (kills - len(first)))]
    runs = [rest[i : i + KILLS_PER_RUN] for i in range(0, len(rest), KILLS_PER_RUN)]
    return [first, *(sorted(blows, key=lambda blow: blow.share) for blows in runs)]


def start(profile: str, run_dir: Path) -> subprocess.Popen[bytes]:
    """The command of a user, in a process group of its own."""
    script = "from espalier.cli import main; main()"
    command = [sys.executable, "-c", script, "run", "--profile", profile, "--out", str(run_dir)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{run_dir.parent}/mlflow.db"}
    with run_dir.with_name(f"{run_dir.name}.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the run to end well."""
    if process.wait():
        sys.exit(f"a run failed: {process.args}; its log lies beside its folder")


def strike(
    profile: str, run_dir: Path, blow: Blow, seconds: dict[str, float], usual_s: float
) -> dict[str, object]:
    """Start the run, wait for the moment, kill it, and look at what it left."""
    process = start(profile, run_dir)
    begun = time.perf_counter()
    if blow.stage is None:
        done_s = sum(seconds[link.name] for link in CHAIN if (run_dir / link.output).is_dir())
        wait_s = max(0.0, blow.share * usual_s - done_s)
        while process.poll() is None and time.perf_counter() - begun < wait_s:
            time.sleep(_POLL_S)
    else:
        while process.poll() is None and running_stage(run_dir) != blow.stage:
            time.sleep(_POLL_S)
        time.sleep(blow.share * seconds[blow.stage])
    stage = running_stage(run_dir)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return {
        "killed": alive,
        "stage": stage if alive else None,
        "after_s": round(time.perf_counter() - begun, 1),
        "left": left_behind(run_dir, stage),
    }


def running_stage(run_dir: Path) -> str | None:
    """The stage that has begun and not published, by the run's own state file."""
    path = run_dir / "run.json"
    if not path.is_file():
        return None
    attempts = json.loads(path.read_bytes())["attempts"]
    open_stages = [link.name for link in CHAIN if link.name in attempts]
    return open_stages[-1] if open_stages else None


def left_behind(run_dir: Path, stage: str | None) -> str:
    """The checkpoint or draft that the kill left of `stage`."""
    folder = next((link.output for link in CHAIN if link.name == stage), None)
    if folder is None:
        return "nothing"
    work, draft = run_dir / f".{folder}.work", run_dir / f".{folder}.draft"
    parts = []
    if (work / "latest.pt").is_file():
        import torch

        step = torch.load(work / "latest.pt", weights_only=True)["step"]
        parts.append(f"checkpoint of step {step}")
    elif work.is_dir() and any(work.iterdir()):
        parts.append(f"{len(list(work.iterdir()))} finished part(s)")
    if draft.is_dir():
        parts.append("a draft")
    return ", ".join(parts) or "nothing"


def print_hit(number: int, hit: dict[str, object]) -> None:
    """One line a kill."""
    where = hit["stage"] or ("between stages" if hit["killed"] else "the run had ended: no kill")
    print(f"kill {number:2d}: {where}, {hit['after_s']} s in; left: {hit['left']}", flush=True)


def digests(run_dir: Path) -> dict[str, str]:
    """Content digests of a finished run."""
    return json.loads((run_dir / "summary.json").read_bytes())["digests"]


def stage_seconds(run_dir: Path) -> dict[str, float]:
    """Seconds of each stage of a finished run."""
    stages = json.loads((run_dir / "summary.json").read_bytes())["stages"]
    return {name: figures["seconds"] for name, figures in stages.items()}


if __name__ == "__main__":
    main()
