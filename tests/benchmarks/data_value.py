"""What is each kind of agent data worth? One policy, one budget of tokens, with and without it.

    python -m tests.benchmarks.data_value --seeds 2 --workers 2

Arms of a seed share knowledge, tasks, demonstrations and base policy, and every arm trains on as
many tokens before reinforcement learning as the others:

    plain        the whole budget on demonstrations
    fas          a share of it on plans and reasoning, the rest on demonstrations
    has          a share of it on decisions, the rest on demonstrations
    fas_has      a share of it on all three, the rest on demonstrations
    negatives    the whole budget on demonstrations and negatives, mixed
    expansion    the whole budget on demonstrations of questions grown layer by layer

Measured: loss of the last steps of the warm start (over what that arm imitates, tokens of the
policy alone), held-out EM after the warm start and after GRPO, and the share of probes in which the
policy calls a tool that is not there (nothing offered, or one that does not exist asked for).

A finished arm keeps its result with its commit, a killed one goes on at the stage that it was in.
The last line is one JSON object; differences to `plain` are paired over questions, with 95 %
bootstrap intervals, and over seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.chain_runs import run_chain
from tests.benchmarks.data_value_figures import print_report
from tests.benchmarks.keeping import keep, kept, provenance

TINY = Path("pipelines/profiles/tiny.toml")
PRETRAINING_SHARE = 0.35
"""Of an arm's token budget, where it reads on before the warm start."""


class Arm(NamedTuple):
    """Kinds of agent texts that are read on, and what else differs."""

    name: str
    kinds: tuple[str, ...] = ()
    negatives: bool = False
    overrides: tuple[str, ...] = ()


ARMS = (
    Arm("plain"),
    Arm("fas", kinds=("planning", "reasoning")),
    Arm("has", kinds=("decision",)),
    Arm("fas_has", kinds=("planning", "reasoning", "decision")),
    Arm("negatives", negatives=True),
    Arm("expansion", overrides=("synthesis.expansion.share=0.5",)),
)
TEXTS = (
    "agent_texts.memories=600",
    "agent_texts.reasoning_tasks=800",
    "agent_texts.decisions=400",
    "agent_texts.negatives=120",
)


def main() -> None:
    """Run what is missing, seeds side by side and their arms one after another, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="seeds at once, a thread each")
    parser.add_argument("--arms", nargs="*", default=[arm.name for arm in ARMS])
    parser.add_argument("--profile", type=Path, default=TINY)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--questions", type=int, default=500, help="held-out questions and probes")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/data_value"))
    parser.add_argument("--arm", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.arm:
        name, seed = options.arm
        _run_arm(_named(name), int(seed), options)
        return
    with ThreadPoolExecutor(options.workers) as pool:
        by_seed = list(pool.map(lambda seed: _arms_of(seed, options), range(options.seeds)))
    results = {(name, seed): row for seed, rows in enumerate(by_seed) for name, row in rows.items()}
    print(json.dumps(print_report(results) | {"origin": provenance(1)}))


def _arms_of(seed: int, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Results of one seed; its arms share a folder of data that the first of them makes."""
    for name in options.arms:
        if _result(options, name, seed) is None:
            _in_a_process(options, name, seed)
    found = {name: _result(options, name, seed) or [] for name in options.arms}
    return {name: row for name, (row,) in found.items()}


def _named(name: str) -> Arm:
    return next(arm for arm in ARMS if arm.name == name)


def _asked(options: argparse.Namespace, name: str, seed: int) -> dict[str, object]:
    settings = {"profile": str(options.profile), "overrides": options.overrides}
    return {"arm": name, "seed": seed, "questions": options.questions, **settings}


def _result(options: argparse.Namespace, name: str, seed: int) -> list[dict[str, object]] | None:
    return kept(options.out / f"{name}-{seed}.json", _asked(options, name, seed))


def _in_a_process(options: argparse.Namespace, name: str, seed: int) -> None:
    """One arm in a process of its own: its memory goes back, and threads are set before torch."""
    command = [sys.executable, "-m", "tests.benchmarks.data_value", "--arm", name, str(seed)]
    command += ["--profile", str(options.profile), "--out", str(options.out)]
    command += ["--questions", str(options.questions)]
    command += [part for override in options.overrides for part in ("--set", override)]
    log = options.out / f"{name}-{seed}.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as stream:
        done = subprocess.run(command, stdout=stream, stderr=stream, env=environment, check=False)
    if done.returncode:
        sys.exit(f"arm {name} of seed {seed} failed: see {log}")
    print(f"finished {name}, seed {seed}", flush=True)


def _run_arm(arm: Arm, seed: int, options: argparse.Namespace) -> None:
    from espalier.determinism import prepare_environment, prepare_torch

    prepare_environment()
    from espalier.config import load_profile

    fixed = [f"seed={seed}", "threads=1", *TEXTS, *options.overrides]
    profile = load_profile(options.profile, fixed)
    prepare_torch(profile.threads)
    # every arm starts from this base policy and is judged on these held-out questions
    common = options.out / f"data-{seed}"
    run_chain(profile, common, "prepare_policy")
    data = common
    if arm.overrides:
        profile = load_profile(options.profile, [*fixed, *arm.overrides])
        data = options.out / f"data-{seed}-{arm.name}"
        run_chain(profile, data, "validate")
    run_dir = options.out / f"{arm.name}-{seed}"
    _start_from(common, data, run_dir, arm)
    budgeted = _within_budget(profile, arm, run_dir, common)
    for name in ("continue_pretraining", "warm_start", "filter_curriculum", "train"):
        _run_stage(budgeted, run_dir, name)
    from espalier.records import read_tasks
    from tests.benchmarks.data_value_figures import measured

    heldout = read_tasks(common / "accepted" / "tasks" / "heldout.jsonl")

    row = {
        "arm": arm.name,
        "seed": seed,
        **measured(budgeted, run_dir, heldout[: options.questions]),
    }
    path = options.out / f"{arm.name}-{seed}.json"
    keep(path, _asked(options, arm.name, seed), [row], provenance(1))


def _run_stage(profile, run_dir: Path, name: str) -> None:
    """Run one stage unless it has published for these settings."""
    from espalier.chain import STAGES
    from espalier.records import NullTracker, read_manifest

    link = STAGES[name]
    folder = run_dir / link.output
    if folder.is_dir() and read_manifest(folder).config_digest == link.digest(profile):
        return
    print(name, flush=True)
    inputs = {name: run_dir / name for name in link.inputs}
    link.run(profile, inputs, folder, NullTracker())


def _start_from(common: Path, data: Path, run_dir: Path, arm: Arm) -> None:
    """Link the shared artifacts, and publish the accepted data with this arm's texts alone."""
    from espalier.records import (
        Provenance,
        publishing,
        read_agent_texts,
        read_manifest,
        write_agent_texts,
    )

    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("knowledge", "base_policy"):
        if not (run_dir / name).exists():
            (run_dir / name).symlink_to((common / name).resolve())
    if (run_dir / "accepted").is_dir():
        return
    whole = data / "accepted"
    manifest = read_manifest(whole)
    texts = [t for t in read_agent_texts(whole / "agent_texts.jsonl") if t.kind in arm.kinds]
    origin = Provenance(producer="validate", config_digest=manifest.config_digest, seed=0)
    with publishing(run_dir / "accepted", origin) as draft:
        for name in manifest.files:
            if name not in ("agent_texts.jsonl", "negatives.jsonl", "run.json"):
                (draft.path / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(whole / name, draft.path / name)
        if texts:
            write_agent_texts(draft.path / "agent_texts.jsonl", texts)
        if arm.negatives:
            shutil.copyfile(whole / "negatives.jsonl", draft.path / "negatives.jsonl")


def _within_budget(profile, arm: Arm, run_dir: Path, common: Path):
    """The profile with as many steps of each kind as the plain arm's tokens allow."""
    from tests.benchmarks.data_value_figures import mean_tokens

    warm, reading = profile.warm_start, profile.continued_pretraining
    tokens, plain = mean_tokens(profile, run_dir), mean_tokens(profile, common)
    budget = warm.steps * warm.trajectories_per_step * plain["demonstration"]
    on_texts = PRETRAINING_SHARE * budget if arm.kinds else 0.0
    per_warm_step = warm.trajectories_per_step * tokens["warm_start"]
    steps = round((budget - on_texts) / per_warm_step)
    updated = {"warm_start": warm.model_copy(update={"steps": steps})}
    if arm.kinds:
        read_steps = max(1, round(on_texts / (reading.texts_per_step * tokens["text"])))
        changed = {"enabled": True, "steps": read_steps, "optimizer": warm.optimizer}
        updated["continued_pretraining"] = reading.model_copy(update=changed)
    return profile.model_copy(update=updated)


if __name__ == "__main__":
    main()
