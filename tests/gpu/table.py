"""What one GPU does, as a table: learning by seed, speed of updates, memory beside `plan`.

    python -m tests.gpu.table
    python -m tests.gpu.table --minutes 9 --begun RUNS
    python -m tests.gpu.table --parts update-16k --device cpu --tokens 600 --layers 2

    demo-0, -1, -2      the profile `laptop` on the GPU, up to `evaluate`
    shop-0, -1, -2      the profile `shop-laptop`, with the same model
    update-16k, -64k    updates of Qwen3-0.6B's shape on so many tokens

A part that is finished keeps its result under --out, with its commit; --minutes ends the part that
runs then, and the next call goes on from its last checkpoint. A machine without sources of facts is
given runs that came to `validate` by --begun: one folder a part, of its name. The last call above
rehearses a part on a CPU, in float32; a GPU computes in bfloat16 where it has it.

MFU is 6 operations a parameter and forwarded position, over the device's fastest product of large
matrices in the same format (`espalier.training.rl.speed`). Tokens a second are of trajectories, of
which several share their beginnings. Memory is what the GPU held at most, so nothing else may run
on it, beside what `espalier plan` says from assumptions alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.chain_runs import begin_from, run_chain
from tests.benchmarks.keeping import keep, kept, provenance
from tests.benchmarks.one_gpu import planned_gpu_mib
from tests.benchmarks.training.material import Material, attempts

if TYPE_CHECKING:
    from espalier.config import Profile

PROFILES = Path("pipelines/profiles")
CHAINS = {"demo": "laptop", "shop": "shop-laptop"}
SEEDS = (0, 1, 2)
UPDATES = {"update-16k": 16_384, "update-64k": 65_536}
PARTS = (*UPDATES, *(f"{name}-{seed}" for name in CHAINS for seed in SEEDS))
QWEN3 = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
GROUP = 8
WARM_UPDATES, TIMED_UPDATES = 1, 3
_MIB = 1 << 20
_GRACE_S = 30


def main() -> None:
    """Run what is missing for as long as is asked, then print what there is."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        run_part(options.part, options)
        return
    until = time.monotonic() + 60 * options.minutes
    for part in options.parts:
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        if result_of(part, options) is None:
            _run_within(part, left_s)
    report(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--begun", type=Path, help="a folder of runs by part")
    parser.add_argument("--tokens", type=int, help="of an update, in the place of the part's")
    parser.add_argument("--layers", type=int, default=QWEN3["num_hidden_layers"])
    parser.add_argument("--set", nargs="*", default=[], help="of the chains: section.key=value")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_within(part: str, seconds: float) -> None:
    """A part in a process of its own, which is ended where it takes longer.

    Raises:
        SystemExit: it failed.
    """
    command = [sys.executable, "-m", __spec__.name, "--part", part, *sys.argv[1:]]
    process = subprocess.Popen(command)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        print(f"{part}: goes on from its last checkpoint by the same command", flush=True)
        return
    if status:
        sys.exit(f"{part} failed with status {status}: see above")


def run_part(part: str, options: argparse.Namespace) -> None:
    """One part in this process."""
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    prepare_torch(threads=_threads())
    measure = update_figures if part in UPDATES else chain_figures
    found = measure(part, options)
    keep(options.out / f"{part}.json", _asked(part, options), [found], provenance(_threads()))


def _threads() -> int:
    return min(8, len(os.sched_getaffinity(0)))


def _asked(part: str, options: argparse.Namespace) -> dict[str, object]:
    if part in UPDATES:
        return {"device": options.device, **_shape(part, options)}
    return {"profile": chain_profile(part, options).model_dump(mode="json")}


def result_of(part: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """What a finished part has measured."""
    rows = kept(options.out / f"{part}.json", _asked(part, options))
    return rows[0] if rows else None


# ------------------------------------------------------------------------------------- learning


def chain_profile(part: str, options: argparse.Namespace) -> Profile:
    """The profile of a part that trains."""
    from espalier.config import load_profile

    name, _, seed = part.rpartition("-")
    return load_profile(
        PROFILES / f"{CHAINS[name]}.toml",
        [f"seed={seed}", f"hardware.device={options.device}", *options.set],
    )


def chain_figures(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """A profile's chain with a seed: EM, minutes, speed and memory."""
    profile = chain_profile(part, options)
    run_dir = options.out / part
    if options.begun is not None and (options.begun / part).is_dir():
        begin_from(options.begun / part, run_dir)
    run_chain(profile, run_dir, "train")
    held = _held_mib(options.device)
    run_chain(profile, run_dir, "evaluate")
    judged = json.loads((run_dir / "evaluation" / "results.json").read_bytes())["eval"]
    trained = json.loads((run_dir / "trained_policy" / "run.json").read_bytes())
    timings = json.loads((run_dir / "timings.json").read_bytes())
    seconds = {stage: cost["seconds"] for stage, cost in timings.items()}
    return {
        "em": {policy: judged[policy]["em"] for policy in ("warm_start", "trained")},
        "gain": [judged["gain"]["em"], *judged["gain"]["ci95"]],
        "minutes": sum(seconds.values()) / 60,
        "minutes_to_trained": sum(seconds[s] for s in seconds if s != "evaluate") / 60,
        "rollout_tokens_per_s": trained["rollout_tokens_per_s"],
        "update_tokens_per_s": trained["update_tokens_per_s"],
        "mfu": trained["update_matmul_share"],
        "held_mib": held,
        "planned_mib": planned_gpu_mib(profile)["train"],
    }


def _held_mib(device: str) -> float:
    """What the GPU holds at most, by whatever process; 0 on a CPU."""
    import torch

    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return (total - free - reserved + torch.cuda.max_memory_reserved()) / _MIB


# ----------------------------------------------------------------------------- speed of updates


def update_figures(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Updates on made trajectories: seconds, tokens a second, MFU and memory."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from espalier.config import Profile
    from espalier.policy.hardware import Hardware
    from espalier.training.rl.speed import matmul_peak
    from tests.benchmarks.training.here import timed_updates

    shape = _shape(part, options)
    given = made_material(shape["tokens"])
    tokens = sum(len(attempt.token_ids) for attempt in given.attempts)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**(QWEN3 | {"num_hidden_layers": shape["layers"]})))
    folder = options.out / f"qwen3-{shape['layers']}"
    if not folder.exists():
        model.save_pretrained(folder)  # `plan` reads its size from there
    profile = Profile.model_validate(
        {
            "policy": {"model": str(folder)},
            "episode": {"max_tokens": max(512, *(len(one.token_ids) for one in given.attempts))},
            "curriculum": {"enabled": False},
            "training": {
                "minibatches": 1,
                "tasks_per_step": len(given.attempts) // GROUP,
                "group_size": GROUP,
            },
            "hardware": {"device": options.device, "micro_batch_tokens": 16_384},
        }
    )
    hardware = Hardware.from_config(profile.hardware)
    hardware.move(model)
    meter = timed_updates(model, profile, hardware, given)
    parameters = sum(weight.numel() for weight in model.parameters())
    positions_per_s = meter.positions / meter.wall_s
    return {
        "tokens": tokens,
        "seconds": meter.wall_s / TIMED_UPDATES,
        "update_tokens_per_s": TIMED_UPDATES * tokens / meter.wall_s,
        "positions_per_s": positions_per_s,
        "mfu": 6 * parameters * positions_per_s / matmul_peak(hardware),
        "held_mib": _held_mib(options.device),
        "planned_mib": planned_gpu_mib(profile)["train"],
    }


def _shape(part: str, options: argparse.Namespace) -> dict[str, int]:
    return {"tokens": options.tokens or UPDATES[part], "layers": options.layers}


def made_material(tokens: int) -> Material:
    """Groups of made trajectories of at least so many tokens."""
    groups = 1
    while sum(len(one.token_ids) for one in attempts(groups, GROUP, seed=0)) < tokens:
        groups += 1
    return Material(
        policy_dir="", threads=0, group_size=GROUP, attempts=attempts(groups, GROUP, seed=0),
        sft_batch=0, warm_steps=WARM_UPDATES, steps=TIMED_UPDATES,
    )  # fmt: skip


def report(options: argparse.Namespace) -> None:
    """A line a part, and the JSON line."""
    results = {part: found for part in options.parts if (found := result_of(part, options))}
    columns = ("part", "EM", "gain", "minutes", "update tokens/s", "MFU", "MiB", "planned MiB")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for part, found in results.items():
        em, gain, minutes = "", "", f"{found.get('seconds', 0.0) / 60:.2f}"
        if part not in UPDATES:
            em = " to ".join(f"{100 * value:.1f}" for value in found["em"].values())
            mean, low, high = (100 * value for value in found["gain"])
            gain, minutes = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]", f"{found['minutes']:.1f}"
        print(
            f"| {part} | {em} | {gain} | {minutes} | {found['update_tokens_per_s']:,.0f} | "
            f"{100 * found['mfu']:.1f} % | {found['held_mib']:,.0f} | {found['planned_mib']:,.0f} |"
        )
    missing = [part for part in options.parts if part not in results]
    if missing:
        print(f"not finished: {', '.join(missing)}")
    print(json.dumps({"gpu": results, "missing": missing}))


if __name__ == "__main__":
    main()
