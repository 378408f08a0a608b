r"""SFT and GRPO-update throughput beside plain transformers and TRL, same model, same data.

    python -m tests.benchmarks.training --repeats 3 --threads 2
    python -m tests.benchmarks.training --run runs/demo --batches 2 4 8
    python -m tests.benchmarks.training --run runs/demo --activation-checkpointing \
        --trainers espalier-grpo --out runs/benchmarks/checkpointed

    espalier-sft   this project's supervised loop     trainer-sft   transformers' Trainer
                                                      trl-sft       TRL's SFTTrainer
    espalier-grpo  this project's policy update       trl-grpo      TRL's GRPOTrainer, its update
                                                      eager-grpo    transformers, by hand

The first trains small random models on made trajectories of 1 to 4 turns. The second trains the
base model of a finished run, with its adapter, on trajectories of its last step: --groups groups.
Every trainer gets the same; float32. Those of others are tried with each of --batches rows, and the
fastest counts; this project's rows are the run's `hardware.micro_batch_tokens`.

Tokens a second are real tokens: prompts, actions and tool results, of every trajectory, also where
several share them. Padding waste is the share of forwarded positions that hold no real token. Each
repeat of a trainer is a process of its own; a finished one keeps its result, with the commit, under
--out. Arithmetic is what the machine could reach: its fastest matrix product over the operations
that a token needs, if nothing is shared. The last line is one JSON object of the headline figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from espalier.records import json_digest
from tests.benchmarks.keeping import keep, kept, provenance
from tests.benchmarks.peers import peer_python
from tests.benchmarks.rollout.model import SHAPES, save_benchmark_policy
from tests.benchmarks.training.material import Attempt, Material, attempts, write_material

RIVALS = {
    "espalier-sft": ("trainer-sft", "trl-sft"),
    "espalier-grpo": ("trl-grpo", "eager-grpo"),
}
TRAINERS = tuple(name for ours, rivals in RIVALS.items() for name in (ours, *rivals))
Rows = Sequence[Mapping[str, float]]


def main() -> None:
    """Measure what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--run", type=Path, help="a finished run of a given model")
    parser.add_argument("--groups", type=int, default=4, help="of the run's last step")
    parser.add_argument(
        "--activation-checkpointing", action="store_true", help="in this project's policy update"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[16], help="rows, of others")
    parser.add_argument("--size", choices=SHAPES, default="1m")
    parser.add_argument("--architecture", choices=("qwen3", "lfm2"), default="qwen3")
    parser.add_argument("--sft-steps", type=int, default=40)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/training"))
    options = parser.parse_args()
    if options.run is not None:
        out = options.out / f"{options.run.resolve().name}-{options.threads}t"
        make, trainers = recorded(options), ("espalier-grpo", *RIVALS["espalier-grpo"])
    else:
        out = options.out / f"{options.architecture}-{options.size}-{options.threads}t"
        make, trainers = made(options, out), TRAINERS
    out.mkdir(parents=True, exist_ok=True)
    if options.run is None:
        save_benchmark_policy(out / "policy", options.architecture, options.size)
    results = {name: fastest(name, out, make, options) for name in options.trainers or trainers}
    print_table(results)
    bound = arithmetic_bound(make("espalier-grpo", 0, 1), options.threads)
    print(f"arithmetic: {bound:.0f} tokens/s")
    print(json.dumps(headline(results) | {"arithmetic_tokens_per_s": round(bound, 1)}))


def made(options: argparse.Namespace, out: Path) -> Callable[[str, int, int], Material]:
    """Made trajectories for the random model in `out`: of a trainer, a repeat, a batch."""

    def make(name: str, repeat: int, batch: int) -> Material:
        is_update = name.endswith("grpo")
        return Material(
            policy_dir=str((out / "policy").resolve()),
            threads=options.threads,
            group_size=8,
            attempts=attempts(16, 8, repeat),
            sft_batch=batch,
            warm_steps=1 if is_update else 4,
            steps=options.updates if is_update else options.sft_steps,
        )

    return make


def recorded(options: argparse.Namespace) -> Callable[[str, int, int], Material]:
    """The last step of a finished run, for its base model."""
    from espalier.records.trajectory import read_trajectories
    from espalier.steps.profiles import saved_profile

    run: Path = options.run
    profile = saved_profile((run / "profile.json").read_text("utf-8"))
    groups: dict[str, list[Attempt]] = {}
    for found in read_trajectories(run / "trained_policy" / "trajectories.parquet"):
        groups.setdefault(found.group_id, []).append(
            Attempt(
                token_ids=list(found.token_ids),
                action_mask=[int(on) for on in found.action_mask],
                spans=[(t.action_start, t.action_end, t.observation_end) for t in found.turns],
                reward=float(found.reward["outcome"]),
            )
        )
    size = profile.training.group_size
    whole = [group for group in groups.values() if len(group) == size][: options.groups]
    lora = profile.policy.lora

    def make(name: str, repeat: int, batch: int) -> Material:
        del name, repeat
        return Material(
            policy_dir=str((run / "pretrained_policy" / "policy").resolve()),
            threads=options.threads,
            group_size=size,
            attempts=tuple(attempt for group in whole for attempt in group),
            sft_batch=batch,
            warm_steps=1,
            steps=options.updates,
            lora=lora.model_dump(mode="json") if lora is not None else None,
            micro_batch_tokens=profile.hardware.micro_batch_tokens,
            activation_checkpointing=options.activation_checkpointing,
        )

    return make


def fastest(
    name: str, out: Path, make: Callable[[str, int, int], Material], options: argparse.Namespace
) -> Rows:
    """A trainer's repeats with the batch that suits it best; this project's have their own."""
    batches = options.batches[:1] if name == "espalier-grpo" else options.batches
    tried = [measured(name, batch, out, make, options.repeats) for batch in batches]
    return max(tried, key=lambda rows: statistics.fmean(map(rate, rows)))


def measured(
    name: str,
    batch: int,
    out: Path,
    make: Callable[[str, int, int], Material],
    repeats: int,
) -> Rows:
    """A trainer's repeats with one batch: kept ones, or those of runs now."""
    path = out / f"{name}-{batch}.json"
    materials = [make(name, repeat, batch) for repeat in range(repeats)]
    asked = {"materials": json_digest([asdict(material) for material in materials])}
    found = kept(path, asked)
    if found is not None:
        return found
    rows = []
    for repeat, material in enumerate(materials):
        print(f"running {name} of {batch} rows, repeat {repeat}", flush=True)
        written = out / f"material-{name}-{batch}-{repeat}.json"
        write_material(written, material)
        rows.append(run(name, written, out, material.threads) | {"batch": batch})
    keep(path, asked, rows, provenance(materials[0].threads))
    return rows


def rate(row: Mapping[str, float]) -> float:
    """Real tokens a second."""
    return row["tokens"] / row["wall_s"]


def arithmetic_bound(material: Material, threads: int) -> float:
    """Tokens a second at the speed of one large matrix product, if no token were shared.

    A token takes two operations a weight of the linear layers forwards and two backwards, and two
    more for the gradient of each weight that is trained itself. Of the output head only actions
    have need; attention is left out.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from espalier.orchestration.doctor import gigaflops

    model = AutoModelForCausalLM.from_pretrained(material.policy_dir)
    head = model.get_output_embeddings()
    linear = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
    weights = sum(part.weight.numel() for part in linear if part is not head)
    actions = sum(sum(attempt.action_mask) for attempt in material.attempts)
    share = actions / sum(len(attempt.token_ids) for attempt in material.attempts)
    operations = (6 if material.lora is None else 4) * (weights + share * head.weight.numel())
    return gigaflops(torch, "float32", threads) * 1e9 / operations


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
    print("\ntrainer        tokens/s  (min-max)        padding   rss_mb  rows")
    for name, rows in results.items():
        rates = [rate(row) for row in rows]
        spread = f"({min(rates):.0f}-{max(rates):.0f})"
        print(
            f"{name:14s} {statistics.fmean(rates):8.0f}  {spread:16s} {100 * waste(rows):6.1f}%"
            f"  {max(row['peak_rss_mb'] for row in rows):7.0f}  {rows[0]['batch']:4.0f}"
        )


def headline(results: Mapping[str, Rows]) -> dict[str, object]:
    """Means over repeats, and this project's trainers over their rivals."""
    rates = {name: statistics.fmean([rate(row) for row in rows]) for name, rows in results.items()}
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
