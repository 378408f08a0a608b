"""The same run on a GPU and on the CPU of the same machine: seconds, tokens a second, memory, EM.

    python -m tests.benchmarks.one_gpu
    python -m tests.benchmarks.one_gpu --profile smoke --from RUN --devices cuda --until train
    python -m tests.benchmarks.one_gpu --stages none --decode --devices cuda

Each device has a process and a run folder of its own. --from RUN copies a run of the same profile
that has come to `validate`: then no source of facts is read. --decode also samples from a model of
1.5 billion random weights (the shape of Qwen2.5-1.5B, rows with a common prompt of 512 tokens), in
float32 and in bfloat16. Tokens a second of sampling count what is read and written; the share of
the peak is that of `training.rl.speed`. Memory of the GPU is what the process holds of it, beside
what `espalier plan` says for each stage. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espalier.determinism import prepare_environment, prepare_torch

if TYPE_CHECKING:
    from espalier.config import Profile

PROFILES = Path("pipelines/profiles")
STAGES = (
    "prepare_policy", "continue_pretraining", "warm_start", "filter_curriculum", "train",
    "evaluate",
)  # fmt: skip
SPEEDS = {
    "base_policy": ("prestage_tokens_per_s",),
    "warm_policy": ("sft_tokens_per_s",),
    "trained_policy": ("rollout_tokens_per_s", "update_tokens_per_s", "update_matmul_share"),
    "evaluation": ("rollout_tokens_per_s",),
}
"""Figures of run.json, by artifact."""
QWEN = {
    "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
PROMPT, GROUP = 512, 8
_MIB = 1 << 20


def main() -> None:
    options = _options()
    if options.arm:
        _arm(options)
        return
    results = {}
    for device in options.devices:
        subprocess.run(
            [sys.executable, "-m", __spec__.name, "--arm", device, *sys.argv[1:]], check=True
        )
        results[device] = json.loads((options.out / f"{device}.json").read_bytes())
    for device, found in results.items():
        print(f"\n{device}: {found['machine']}")
        for stage, row in found["stages"].items():
            print(f"  {stage:<22}" + "  ".join(f"{name} {value:g}" for name, value in row.items()))
        for name, value in {**found["figures"], **found.get("decode", {})}.items():
            print(f"  {name:<44}{value:g}")
    print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", default="tiny", help="name of a profile, or a file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu"])
    parser.add_argument("--until", default="evaluate", choices=STAGES, help="the last stage")
    parser.add_argument("--stages", choices=("all", "none"), default="all")
    parser.add_argument("--from", dest="begun", type=Path, help="a run that has been validated")
    parser.add_argument("--threads", type=int, help="of torch; default: the profile's")
    parser.add_argument("--decode", action="store_true", help="also sample from a large model")
    parser.add_argument("--rows", type=int, default=128, help="rows of --decode")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each row of --decode")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/one_gpu"))
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    return parser.parse_args()


def _arm(options: argparse.Namespace) -> None:
    prepare_environment()
    from espalier.config import load_profile

    given = Path(options.profile)
    path = given if given.suffix else PROFILES / f"{given}.toml"
    profile = load_profile(path, [f"hardware.device={options.arm}", *options.set])
    prepare_torch(options.threads or profile.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": _machine(options), "stages": {}, "figures": {}}
    result = options.out / f"{options.arm}.json"
    if options.decode:
        found["decode"] = _decoding(options)
        result.write_text(json.dumps(found))
    if options.stages == "all":
        for stage, row in _run(profile, options):
            found["stages"][stage] = row
            found["figures"] = _figures(options.out / options.arm)
            result.write_text(json.dumps(found))


def _machine(options: argparse.Namespace) -> str:
    import torch

    from tests.benchmarks.keeping import provenance

    made = provenance(torch.get_num_threads())
    gpu = torch.cuda.get_device_name() + ", " if options.arm == "cuda" else ""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    threads = torch.get_num_threads()
    return f"{gpu}{made['processor']}, {threads} threads, {versions}, commit {made['commit']}"


def _run(profile: Profile, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    from tests.benchmarks.chain_runs import begin_from, run_chain

    run_dir = options.out / options.arm
    if options.begun is not None:
        begin_from(options.begun, run_dir)
    planned = planned_gpu_mib(profile)
    for stage in STAGES[: STAGES.index(options.until) + 1]:
        run_chain(profile, run_dir, stage)
        cost = json.loads((run_dir / "timings.json").read_bytes())[stage]
        row = {"seconds": cost["seconds"], "host_mib": cost["peak_rss_mb"]}
        row |= _taken_of_gpu(options.arm)
        if options.arm == "cuda" and stage in planned:
            row["planned_gpu_mib"] = round(planned[stage])
        print(stage, row, flush=True)
        yield stage, row


def _taken_of_gpu(device: str) -> dict[str, float]:
    """What lived at most, and what the process holds; then both begin anew."""
    import torch

    if device != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info()
    lived = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return {"gpu_lived_mib": round(lived / _MIB), "gpu_held_mib": round((total - free) / _MIB)}


def planned_gpu_mib(profile: Profile) -> dict[str, float]:
    """MiB of an accelerator by stage, from assumptions alone."""
    from espalier import planning

    order = planning.PlanOrder(
        profile=profile,
        machine=planning.this_machine(Path()),
        limits=planning.Limits(accelerator_mib=80_000.0),
    )
    memory = planning.make_plan(order).needs.memory
    return {stage: one.accelerator_mib for stage, one in memory.items()}


def _figures(run_dir: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    for folder, names in SPEEDS.items():
        path = run_dir / folder / "run.json"
        content = json.loads(path.read_bytes()) if path.is_file() else {}
        figures |= {f"{folder}.{name}": content[name] for name in names if content.get(name)}
    results = run_dir / "evaluation" / "results.json"
    if results.is_file():
        judged = json.loads(results.read_bytes())["eval"]
        figures |= {f"{name}.em": judged[name]["em"] for name in ("warm_start", "trained")}
    return figures


class _LengthAlone:
    """A stop rule by which only `max_tokens` ends an action."""

    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()

    def ends_action(self, action_ids: object) -> bool:
        del action_ids
        return False


def _decoding(options: argparse.Namespace) -> dict[str, float]:
    """Tokens a second of each format, prompts included and apart, and memory of the GPU."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from espalier.rollout.engines.engine import Sampling
    from espalier.rollout.engines.lockstep import LockstepEngine, decoder_for

    torch.manual_seed(0)
    with torch.device(options.arm):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN)).eval()

    async def play(engine: LockstepEngine, tokens: int) -> float:
        started = time.perf_counter()

        async def row(number: int) -> None:
            prompt = [(number // GROUP * 31 + place) % 1000 for place in range(PROMPT)]
            session = await engine.open(prompt, Sampling(temperature=1.0, seed=number))
            await session.sample(max_tokens=tokens)
            session.close()

        async with engine.serving():
            await asyncio.gather(*(row(number) for number in range(options.rows)))
        return time.perf_counter() - started

    found: dict[str, float] = {}
    formats = {"float32": None, "bfloat16": torch.bfloat16}
    for name, autocast in formats.items() if options.arm == "cuda" else [("float32", None)]:
        engine = LockstepEngine(
            model, decoder_for(model, autocast), _LengthAlone(), max_rows=options.rows
        )
        asyncio.run(play(engine, 2))  # what is done once
        prompts_s = asyncio.run(play(engine, 1))
        whole_s = asyncio.run(play(engine, 1 + options.tokens))
        sampled = options.rows * options.tokens
        found[f"decode.{name}.tokens_per_s"] = sampled / (whole_s - prompts_s)
        found[f"decode.{name}.ms_per_step"] = 1000 * (whole_s - prompts_s) / options.tokens
        found[f"decode.{name}.prompts_s"] = prompts_s
        found |= {f"decode.{name}.{key}": n for key, n in _taken_of_gpu(options.arm).items()}
    return found


if __name__ == "__main__":
    main()
