"""This project's lock-step engine, in the process that plays the episodes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from espalier.policy.loading import load_policy
from espalier.rollout.engines.lockstep import lockstep_engine
from tests.benchmarks.rollout.episodes import LengthAlone, measured_play
from tests.benchmarks.rollout.matmul import matmul_limit_s, matmul_share
from tests.benchmarks.rollout.measuring import Measurement, measure, options_of
from tests.benchmarks.rollout.script import Work, read_work


def main() -> None:
    """Roll all works out and report."""
    options = options_of(argparse.ArgumentParser(description=__doc__))
    first = read_work(options.works[0])
    torch.set_num_threads(first.threads)
    model, tokenizer, _ = load_policy(Path(first.policy_dir))
    engine = lockstep_engine(model, LengthAlone(), max_rows=len(first.episodes))

    def roll_out(work: Work) -> Measurement:
        return measured_play("lockstep", work, engine, tokenizer)

    measure(options.works, options.out, roll_out, first.group_size)
    # last, because the profiler's own memory would count as the engine's
    profiled = profile_products(work=replace(first, tool_s=0.0), roll_out=roll_out, model=model)
    options.out.with_suffix(".matmul.json").write_text(json.dumps(profiled))


def profile_products(
    work: Work, roll_out: Callable[[Work], Measurement], model: PreTrainedModel
) -> dict[str, float]:
    """Share of time in products, and the seconds that products alone need for the same tokens."""
    measurement = roll_out(work)
    limit_s = matmul_limit_s(
        model,
        forwarded=measurement.forwarded_tokens,
        sampled=measurement.action_tokens,
        rows=len(work.episodes),
    )
    return {
        "share": matmul_share(lambda: roll_out(work)),
        "limit_s": limit_s,
        "times_limit": measurement.wall_s / limit_s,
    }


if __name__ == "__main__":
    main()
