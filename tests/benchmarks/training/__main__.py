"""SFT and GRPO-update throughput beside plain transformers and TRL, same model, same data.

    python -m tests.benchmarks.training --repeats 3 --threads 2

    espalier-sft   this project's supervised loop     trainer-sft   transformers' Trainer
                                                      trl-sft       TRL's SFTTrainer
    espalier-grpo  this project's policy update       trl-grpo      TRL's GRPOTrainer, its update

Trajectories are ragged (1 to 4 turns) and every trainer gets the same; float32. Tokens a second are
real tokens: prompts, actions and tool results. Padding waste is the share of forwarded positions
that hold no real token. Each repeat of a trainer is a process of its own; a finished one keeps its
result, with the commit, under --out. The last line is one JSON object of the headline figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.keeping import keep, kept, provenance
from tests.benchmarks.peers import peer_python
from tests.benchmarks.rollout.model import SHAPES, save_benchmark_policy
from tests.benchmarks.training.material import Material, attempts, write_material

RIVALS = {"espalier-sft": ("trainer-sft", "trl-sft"), "espalier-grpo": ("trl-grpo",)}
TRAINERS = tuple(name for ours, rivals in RIVALS.items() for name in (ours, *rivals))
Rows = Sequence[Mapping[str, float]]


def main() -> None:
    """Measure what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=TRAINERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--size", choices=SHAPES, default="1m")
    parser.add_argument("--architecture", choices=("qwen3", "lfm2"), default="qwen3")
    parser.add_argument("--sft-steps", type=int, default=40)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/training"))
    options = parser.parse_args()
    out = options.out / f"{options.architecture}-{options.size}-{options.threads}t"
    out.mkdir(parents=True, exist_ok=True)
    save_benchmark_policy(out / "policy", options.architecture, options.size)
    results = {name: measured(name, out, options) for name in options.trainers}
    print_table(results)
    print(json.dumps(headline(results)))


def measured(name: str, out: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """A trainer's repeats: kept ones, or those of runs now."""
    steps = options.updates if name.endswith("grpo") else options.sft_steps
    asked = {"repeats": options.repeats, "steps": steps}
    found = kept(out / f"{name}.json", asked)
    if found is not None:
        return found
    rows = []
    for seed in range(options.repeats):
        print(f"running {name}, repeat {seed}", flush=True)
        material = Material(
            policy_dir=str((out / "policy").resolve()),
            threads=options.threads,
            group_size=8,
            attempts=attempts(16, 8, seed),
            sft_batch=16,
            warm_steps=1 if name.endswith("grpo") else 4,
            steps=steps,
        )
        path = out / f"material-{name}-{seed}.json"
        write_material(path, material)
        rows.append(run(name, path, out, options.threads))
    keep(out / f"{name}.json", asked, rows, provenance(options.threads))
    return rows


def run(name: str, material: Path, out: Path, threads: int) -> dict[str, object]:
    """One trainer in a process of its own."""
    python, module = sys.executable, "tests.benchmarks.training.here"
    if not name.startswith("espalier"):
        python, module = str(peer_python("trl")), "tests.benchmarks.training.peers_here"
    result = out / f"{name}.result"
    command = [python, "-m", module, "--trainer", name]
    command += ["--material", str(material), "--out", str(result)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with (out / f"{name}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{name} failed: see {out / name}.log")
    return json.loads(result.read_text())


def print_table(results: Mapping[str, Rows]) -> None:
    """Throughput, padding waste and memory of every trainer."""
    print("\ntrainer        tokens/s  (min-max)        padding   rss_mb")
    for name, rows in results.items():
        rates = [row["tokens"] / row["wall_s"] for row in rows]
        spread = f"({min(rates):.0f}-{max(rates):.0f})"
        print(
            f"{name:14s} {statistics.fmean(rates):8.0f}  {spread:16s} {100 * waste(rows):6.1f}%"
            f"  {max(row['peak_rss_mb'] for row in rows):7.0f}"
        )


def headline(results: Mapping[str, Rows]) -> dict[str, object]:
    """Means over repeats, and this project's trainers over their rivals."""
    rates = {
        name: statistics.fmean([row["tokens"] / row["wall_s"] for row in rows])
        for name, rows in results.items()
    }
    return {
        "benchmark": "training",
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "ours_over": {
            rival: round(rates[ours] / rates[rival], 2)
            for ours, rivals in RIVALS.items()
            for rival in rivals
            if ours in rates and rival in rates
        },
        "padding_waste": {name: round(waste(rows), 3) for name, rows in results.items()},
        "peak_rss_mb": {
            name: round(max(row["peak_rss_mb"] for row in rows)) for name, rows in results.items()
        },
    }


def waste(rows: Rows) -> float:
    """Share of forwarded positions that hold no real token; below 0 where prompts are shared."""
    return 1 - sum(row["tokens"] for row in rows) / sum(row["positions"] for row in rows)


if __name__ == "__main__":
    main()
