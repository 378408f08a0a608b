"""Arms of a learning benchmark: runs in processes of their own, and what is kept of each."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pyarrow.parquet as pq

from espalier.evaluation.estimates import Interval, paired_difference
from tests.benchmarks.keeping import commit

if TYPE_CHECKING:
    from espalier.config import Profile

POLICIES = ("untrained", "warm_start", "trained")
RESAMPLES = 10_000


class Arm(NamedTuple):
    """A variant of what a benchmark compares, under a seed of training."""

    variant: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder and its result's file."""
        return f"{self.variant}-{self.seed}"

    @classmethod
    def named(cls, name: str) -> Self:
        """The arm of that name."""
        variant, _, seed = name.rpartition("-")
        return cls(variant, int(seed))


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, whose repetitions add up."""
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], help="further settings, section.key=value"
    )


def add_arm_options(parser: argparse.ArgumentParser, out: str) -> None:
    """Add what every benchmark of arms is asked: where to, how many at one time, what counts."""
    parser.add_argument("--workers", type=int, default=1, help="arms at one time")
    parser.add_argument("--out", type=Path, default=Path(out))
    add_settings(parser)
    parser.add_argument("--any-commit", action="store_true", help="count other commits' results")
    parser.add_argument("--again", action="store_true", help="delete what does not match, and run")
    parser.add_argument("--arm", help=argparse.SUPPRESS)


def run_all(
    commands: Mapping[str, Sequence[str]],
    out: Path,
    *,
    workers: int,
    can_start: Callable[[str], bool] = lambda _: True,
) -> None:
    """Run commands on one thread each, at most `workers` at a time, each with a log in `out`.

    Args:
        commands: name of an arm -> arguments behind `python -m`.
        out: folder of the logs.
        workers: processes at one time.
        can_start: whether what the named arm starts from is there.

    Raises:
        SystemExit: an arm failed; its log is named.
    """
    out.mkdir(parents=True, exist_ok=True)
    waiting, running = list(commands), dict[str, subprocess.Popen[bytes]]()
    while waiting or running:
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if process.returncode:
                    sys.exit(f"arm {name} failed: see {out / name}.log")
                print(f"{time.strftime('%H:%M:%S')} finished {name}", flush=True)
        ready = [name for name in waiting if can_start(name)]
        if ready and len(running) < workers:
            waiting.remove(ready[0])
            running[ready[0]] = _start(ready[0], commands[ready[0]], out)
        else:
            time.sleep(0.5)


def _start(name: str, arguments: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=log, stderr=log, env=environment
        )


def asked(profile: Profile) -> dict[str, str]:
    """What makes a kept result the answer to what is asked now: profile, code and data."""
    from espalier.chain import CHAIN
    from espalier.records import json_digest

    data = {
        name: digest for stage in CHAIN for name, digest in stage.external_inputs(profile).items()
    }
    settings = profile.model_dump(mode="json")
    return {"profile": json_digest({"settings": settings, "data": data})}


def kept_arm(
    path: Path, profile: Callable[[], Profile], options: argparse.Namespace
) -> dict[str, Any] | None:
    """The result of an arm, or None where it has still to run, or to go on.

    Args:
        path: of the result; the arm's run is in the folder beside it, without the suffix.
        profile: makes that of the arm.
        options: `any_commit` counts another commit's result; `again` deletes what does not match.

    Raises:
        SystemExit: what is there is of another profile or commit, and nothing says what to do.
    """
    files = [one for one in (path, path.with_suffix(".begun")) if one.is_file()]
    for one in files:
        content = json.loads(one.read_bytes())
        fault = _other(content, asked(profile()), options)
        if fault and not options.again:
            sys.exit(
                f"{one}: {fault}. Name another --out, or delete it and run by --again"
                + ("" if "profile" in fault else ", or count it by --any-commit")
            )
        if fault:
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            one.unlink()
        elif one is path:
            return {**content["rows"][0], "commit": content["origin"]["commit"]}
    return None


def _other(content: dict[str, Any], now: dict[str, str], options: argparse.Namespace) -> str:
    if content["asked"] != now:
        return "is of another profile, or of other data"
    made, here = content["origin"]["commit"], commit()
    if made != here and not options.any_commit:
        return f"is of commit {made}, and this is {here}"
    return ""


def result_of(run_dir: Path) -> dict[str, Any]:
    """What is kept of a finished run."""
    evaluated = json.loads((run_dir / "evaluation" / "results.json").read_bytes())["eval"]
    judging = json.loads((run_dir / "evaluation" / "run.json").read_bytes())["policies"]
    training = json.loads((run_dir / "trained_policy" / "run.json").read_bytes())
    counted = [training, *judging.values()]
    rows = pq.read_table(run_dir / "evaluation" / "questions.parquet").to_pylist()
    rows.sort(key=lambda row: row["task_id"])
    return {
        "em": {name: evaluated[name]["em"] for name in POLICIES},
        "gain": evaluated["gain"],
        "right": {
            name: [bool(row["em"]) for row in rows if row["policy"] == name] for name in POLICIES
        },
        "token_drift": sum(int(one["token_drift"]) for one in counted),
        "compared_turns": sum(int(one["compared_turns"]) for one in counted),
        "best_step": training["best_step"],
        "timings": json.loads((run_dir / "timings.json").read_bytes()),
    }


def together(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All seeds as one, questions paired within their seed."""
    right = {
        name: [value for result in results for value in result["right"][name]] for name in POLICIES
    }
    gain = paired_difference(
        right["trained"], right["warm_start"], resamples=RESAMPLES, confidence=0.95, seed=0
    )
    return {
        "seeds": len(results),
        "n": len(right["trained"]),
        "em": {name: sum(values) / len(values) for name, values in right.items()},
        "gain": list(gain),
        "token_drift": sum(result["token_drift"] for result in results),
        "compared_turns": sum(result["compared_turns"] for result in results),
    }


def gain_over_seeds(results: Sequence[Mapping[str, Any]]) -> Interval:
    """The gain with an interval that also says how far one seed is from another.

    Seeds are resampled, then the questions inside each drawn one, before and after as a pair
    (Davison and Hinkley 1997, sec. 3.8: resampling of clustered data, both levels with
    replacement). 95 %, percentile.
    """
    dice = np.random.default_rng(0)
    gains_SN = [
        np.asarray(result["right"]["trained"], dtype=float)
        - np.asarray(result["right"]["warm_start"], dtype=float)
        for result in results
    ]
    means = [
        np.mean([dice.choice(one, one.size).mean() for one in _drawn(gains_SN, dice)])
        for _ in range(RESAMPLES // 5)  # 2,000 resamples put the ends within 0.1 points
    ]
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(np.mean([one.mean() for one in gains_SN])), float(low), float(high))


def _drawn(
    gains_SN: Sequence[np.ndarray[Any, Any]], dice: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    return [gains_SN[place] for place in dice.integers(len(gains_SN), size=len(gains_SN))]
