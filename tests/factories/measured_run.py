"""A run's folder that a plan learns from: profile, times, peaks, histories, episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from espalier.config import Profile
from espalier.records.trajectory import Trajectory, write_trajectories
from tests.factories.sample_run import publish, trajectory, write_json

SECONDS = {
    "ingest": 2.0,
    "synthesize": 6.5,
    "validate": 6.0,
    "prepare_policy": 81.0,
    "continue_pretraining": 1.0,
    "warm_start": 31.0,
    "filter_curriculum": 5.0,
    "train": 301.0,
    "evaluate": 21.0,
    "register": 3.0,
}
PEAKS_MIB = {
    "ingest": 800.0,
    "synthesize": 850.0,
    "validate": 1010.0,
    "prepare_policy": 1250.0,
    "continue_pretraining": 1250.0,
    "warm_start": 1300.0,
    "filter_curriculum": 1310.0,
    "train": 1900.0,
    "evaluate": 1880.0,
    "register": 1880.0,
}
POLICIES = ("untrained", "warm_start", "trained")
FOLDERS = {
    "synthesize": "synthetic",
    "validate": "accepted",
    "prepare_policy": "base_policy",
    "warm_start": "warm_policy",
    "train": "trained_policy",
    "evaluate": "evaluation",
}


def episode(number: int) -> Trajectory:
    """28 tokens, of which the policy wrote 14; those of other numbers begin otherwise."""
    made = trajectory(number, "Lyon | country: France", "Paris")
    return replace(made, token_ids=(number, *made.token_ids[1:]))


def make_measured_run(
    run: Path,
    profile: Profile,
    *,
    peaks_mib: Mapping[str, float] = PEAKS_MIB,
    steps: int | None = None,
    layout: str = "prefix_tree",
) -> Path:
    """Write a run of `profile` that took `SECONDS`; its training stopped after `steps`."""
    done = profile.training.steps if steps is None else steps
    per_step = profile.training.tasks_per_step * profile.training.group_size

    def warm_start(path: Path) -> dict[str, int]:
        each = 30.0 * profile.warm_start.trajectories_per_step
        rows = [{"step": step, "tokens": each} for step in range(profile.warm_start.steps)]
        pd.DataFrame(rows).to_parquet(path / "history.parquet")
        write_json(path / "run.json", {"sft_tokens_per_s": 9000.0})
        return {}

    def train(path: Path) -> dict[str, int]:
        rows = [
            {"step": step + 1, "rollouts": 1.25 * per_step * (step + 1), "action_tokens": 12.0}
            for step in range(done)
        ]
        share = 0.4 if layout == "prefix_tree" else 1.0
        of_step = {"update_tokens": 1000.0, "update_positions": 1000.0 * share}
        rows = [{**row, **of_step} for row in rows]
        speed = {
            "learner_wait_share": 0.6, "layout": layout, "update_s": 2.0,
            "update_positions": done * of_step["update_positions"],
        }  # fmt: skip
        pd.DataFrame(rows).to_parquet(path / "history.parquet")
        write_trajectories(path / "trajectories.parquet", [episode(n) for n in range(4)])
        write_json(path / "run.json", speed)
        return {}

    def demonstrated(path: Path) -> dict[str, int]:
        write_trajectories(path / "trajectories.parquet", [episode(1)])
        return {}

    def prepare_policy(path: Path) -> dict[str, int]:
        write_json(path / "run.json", {"prestage_tokens_per_s": 50_000.0})
        return {}

    def evaluate(path: Path) -> dict[str, int]:
        policies = {name: {"seconds": 6.0, "action_tokens": 900} for name in POLICIES}
        write_json(path / "run.json", {"policies": policies})
        return {}

    filled = {"validate": demonstrated, "warm_start": warm_start, "train": train}
    filled |= {"prepare_policy": prepare_policy, "evaluate": evaluate}
    for stage in SECONDS:
        publish(run, FOLDERS.get(stage, stage), stage, filled.get(stage, lambda path: {}))
    timings = {
        stage: {"seconds": seconds, "peak_rss_mb": peaks_mib[stage]}
        for stage, seconds in SECONDS.items()
    }
    (run / "timings.json").write_text(json.dumps(timings))
    (run / "profile.json").write_text(profile.model_dump_json())
    return run
