"""Does the tiny policy learn to solve word problems with programs in sandboxes?

    python -m tests.benchmarks.arithmetic --seeds 1

Each seed is a run of the arithmetic profile up to `evaluate`, in a folder of its own under --out;
a killed run goes on where it stood, and a finished seed keeps its result with its commit. The table
has EM (answers that mean the same as the gold one) of the untrained, warm-started and trained
policy on the same held-out stories, by number of operations, with bootstrap intervals, and the gain
of all seeds together. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from espalier.evaluation.estimates import Interval, paired_difference
from tests.benchmarks.arms import add_settings
from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.keeping import keep, kept, provenance

PROFILE = Path("pipelines/profiles/arithmetic.toml")
POLICIES = ("untrained", "warm_start", "trained")
RESAMPLES = 10_000


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--profile", type=Path, default=PROFILE)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/arithmetic"))
    add_settings(parser)
    options = parser.parse_args()
    results = {seed: result_of(seed, options) for seed in range(options.seeds)}
    for seed, result in results.items():
        print(table(seed, result))
    gain = gain_of_all(options.out, list(results))
    print(
        f"all seeds: gain {100 * gain.mean:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    )
    figures = {f"seed-{seed}": headline(result) for seed, result in results.items()}
    print(json.dumps({**figures, "gain": gain._asdict()}))


def result_of(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The kept result of a seed, or that of a run until now."""
    path = options.out / f"seed-{seed}.json"
    asked = {"seed": seed, "profile": options.profile.read_text(), "set": options.set}
    rows = kept(path, asked)
    if rows is None:
        rows = [run(seed, options)]
        keep(path, asked, rows, provenance(rows[0]["threads"]))
    return rows[0]


def run(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One seed up to `evaluate`, in this process."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.config import load_profile

    profile = load_profile(options.profile, [f"seed={seed}", *options.set])
    prepare_torch(profile.threads)
    run_dir = options.out / f"seed-{seed}"
    print(f"seed {seed}", flush=True)
    run_chain(profile, run_dir, "evaluate")
    results = json.loads((run_dir / "evaluation" / "results.json").read_bytes())
    timings = json.loads((run_dir / "timings.json").read_bytes())
    return {"threads": profile.threads, "timings": timings, "eval": results["eval"]}


def table(seed: int, result: dict[str, Any]) -> str:
    """EM in percent of each policy, overall and by operations."""
    found = result["eval"]
    lines = [f"seed {seed}      EM %  interval        n     by operations          tool calls"]
    for name in POLICIES:
        figures = found[name]
        low, high = (100 * end for end in figures["ci95"])
        by_steps = " ".join(
            f"{steps}:{100 * part['em']:.0f}" for steps, part in sorted(figures["by_steps"].items())
        )
        lines.append(
            f"{name:<11} {100 * figures['em']:5.1f}  {low:5.1f} to {high:5.1f}  {figures['n']:4d}  "
            f"{by_steps:<22} {figures['tool_calls']:.2f}"
        )
    low, high = (100 * end for end in found["gain"]["ci95"])
    lines.append(f"gain {100 * found['gain']['em']:+.1f} ({low:+.1f} to {high:+.1f})")
    return "\n".join(lines)


def gain_of_all(out: Path, seeds: list[int]) -> Interval:
    """EM of the trained policies minus that of the warm-started ones, paired by seed and story."""
    right: dict[str, list[bool]] = {name: [] for name in POLICIES}
    for seed in seeds:
        path = out / f"seed-{seed}" / "evaluation" / "questions.parquet"
        for row in sorted(pq.read_table(path).to_pylist(), key=lambda row: row["task_id"]):
            right[row["policy"]].append(row["em"])
    return paired_difference(
        right["trained"], right["warm_start"], resamples=RESAMPLES, confidence=0.95, seed=0
    )


def headline(result: dict[str, Any]) -> dict[str, Any]:
    """What is quoted."""
    found = result["eval"]
    em = {name: found[name]["em"] for name in POLICIES}
    return {**em, "n": found["trained"]["n"], "gain": found["gain"]}


if __name__ == "__main__":
    main()
