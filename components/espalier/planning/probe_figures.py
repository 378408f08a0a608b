"""Figures measured by a probe, from the folder of its run.

Every figure inverts the formula that uses it. Times per token and memory are derived with the
lengths of the probe's own episodes. Its policy is hardly trained, so the lengths for a whole run
are those of the teacher's demonstrations.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pandas as pd

from espalier.config import Profile
from espalier.planning.durations import num_tasks, work_seconds
from espalier.planning.figures import Figures, Measured, assumed
from espalier.planning.memory import (
    MOST_FITTED_MIB,
    Placement,
    kept_mib,
    live_mib,
    stage_memory,
)
from espalier.planning.sharing import sharing_behind_prompts
from espalier.planning.sizes import policy_size
from espalier.planning.work import passes, work_of
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.run_directory import RunDirectory, open_run

_DATA_STAGES = ("ingest", "synthesize", "validate")
_LEAST_LIVE_MIB = 100.0
"""Least working memory from which a probe can fit the allocator's rule."""


def probe_figures(profile: Profile, run_dir: Path) -> dict[str, float]:
    """All `Figures` that a probe measured, by name.

    Args:
        profile: profile of the probe.
        run_dir: folder of its run.

    Raises:
        ArtifactError: there is no run, or a file was damaged after publishing.
    """
    run = open_run(run_dir)
    return {
        **_lengths(run, profile),
        **_stage_seconds(run, profile),
        **_token_seconds(run, profile),
        **_memory(run, profile),
    }


def _history(run: RunDirectory, stage: str) -> pd.DataFrame | None:
    """History of a stage; None if it made no step."""
    found = run.table(stage, "history.parquet")
    return found if found is not None and len(found) else None


def _total(history: pd.DataFrame, column: str) -> float:
    """Sum of a column; a missing value counts as 0."""
    return sum(value for value in history[column].tolist() if not math.isnan(value))


def _last_step(run: RunDirectory) -> list[Trajectory]:
    """Trajectories of the last step of reinforcement learning."""
    artifact = run.artifacts.get("train")
    path = artifact.file("trajectories.parquet") if artifact else None
    return read_trajectories(path) if path is not None else []


def _lengths(run: RunDirectory, profile: Profile) -> dict[str, float]:
    """Expected lengths of the whole run's episodes."""
    imitated = _history(run, "warm_start")
    if imitated is None:
        return {}
    total = _total(imitated, "tokens")
    tokens = total / (len(imitated) * profile.warm_start.trajectories_per_step)
    written = _total(imitated, "scored_tokens") / total
    found = {
        "demonstration_tokens": tokens,
        "episode_tokens": tokens,
        "action_tokens": written * tokens,
    }
    if sharing := sharing_behind_prompts(_last_step(run), tokens):
        found |= {"preamble_share": sharing.preamble, "common_share": sharing.group}
    return found


def _own_lengths(run: RunDirectory, profile: Profile) -> dict[str, float]:
    """Lengths of the probe's own episodes."""
    history, last = _history(run, "train"), _last_step(run)
    if history is None or not last:
        return {}
    action_tokens = _written_tokens(history) / history["rollouts"].tolist()[-1]
    # episodes of the last step may differ in length: scale by their ratio to the action tokens
    written = sum(sum(one.action_mask) for one in last) or 1
    ratio = sum(len(one.token_ids) for one in last) / written
    tokens, positions = (_total(history, name) for name in ("update_tokens", "update_positions"))
    return {
        "action_tokens": action_tokens,
        "episode_tokens": min(ratio * action_tokens, float(profile.episode.max_tokens)),
        # all shared positions count as the preamble, wherever they are
        "preamble_share": 1 - positions / tokens if tokens else 0.0,
        "common_share": 0.0,
    }


def _written_tokens(history: pd.DataFrame) -> float:
    """Number of action tokens that reinforcement learning sampled."""
    counts = pairwise([0.0, *history["rollouts"].tolist()])
    sampled = [after - before for before, after in counts]
    means = history["action_tokens"].tolist()
    return sum(mean * count for mean, count in zip(means, sampled, strict=True))


def _stage_seconds(run: RunDirectory, profile: Profile) -> dict[str, float]:
    whole = {"ingest": "ingest_s", "validate": "validation_s", "register": "register_s"}
    found = {
        name: float(seconds)
        for stage, name in whole.items()
        if (seconds := run.measured(stage).get("seconds"))
    }
    if seconds := run.measured("synthesize").get("seconds"):
        found["synthesis_task_s"] = float(seconds) / num_tasks(profile)
    return found


def _token_seconds(run: RunDirectory, profile: Profile) -> dict[str, float]:
    found: dict[str, float] = {}
    prepared, prestage = run.measured("prepare_policy"), profile.policy.prestage
    if rate := prepared.get("prestage_tokens_per_s"):
        # the rest of the stage writes logs and trains the tokenizer
        read_s = prestage.steps * prestage.tokens_per_step / float(rate)
        found["prestage_token_s"] = 1 / float(rate)
        found["tokenizer_s"] = max(work_seconds(prepared["seconds"]) - read_s, 0.0)
    if rate := run.measured("warm_start").get("sft_tokens_per_s"):
        found["sft_token_s"] = 1 / float(rate)
    trained, history = run.measured("train"), _history(run, "train")
    if history is not None and (written := _written_tokens(history)):
        sampled_s = trained["learner_wait_share"] * work_seconds(trained["seconds"])
        found["rollout_token_s"] = sampled_s / written
    if positions := trained.get("update_positions"):
        passed = float(positions) * passes(profile.training.algorithm)
        found["update_token_s"] = float(trained["update_s"]) / passed
    judged = run.measured("evaluate")
    policies = judged.get("policies", {}).values()
    if tokens := sum(float(one["action_tokens"]) for one in policies):
        spent_s = work_seconds(judged["seconds"])
        played_s = min(sum(float(one["seconds"]) for one in policies), spent_s)
        found |= {"judged_token_s": played_s / tokens, "scoring_s": spent_s - played_s}
    return found


def _memory(run: RunDirectory, profile: Profile) -> dict[str, float]:
    """Resident memory, and the allocator's figure, from the peaks of two stages.

    Resident memory follows from the stage with the least live memory. The highest peak is assigned
    to the stage with the most, since the memory kept there is still held in later stages.
    """
    peaks = {
        stage: float(value)
        for stage in run.artifacts
        if (value := run.measured(stage).get("peak_rss_mb"))
    }
    found: dict[str, float] = {}
    of_data = [peaks[stage] for stage in _DATA_STAGES if stage in peaks]
    if of_data:
        found["data_mib"] = max(of_data)
    bare = {"policy_mib": 0.0, "unfragmented_mib": math.inf}
    figures = _figures(profile, {**_lengths(run, profile), **_own_lengths(run, profile), **bare})
    work = work_of(profile, figures)
    seen = {stage: peak for stage, peak in peaks.items() if stage in work}
    if not seen:
        return found
    size, place = policy_size(profile.policy), Placement(accelerator=False, half_precision=False)
    parts, lives = {}, {}
    for stage in seen:
        parts[stage] = stage_memory(work[stage], profile, size, figures, place).host_mib
        lives[stage] = live_mib(work[stage], profile, size, figures, place)
    low, high = min(seen, key=lives.__getitem__), max(seen, key=lives.__getitem__)
    highest_mib = max(seen.values())
    unfragmented = assumed(profile)["unfragmented_mib"]
    live = lives[high]
    resident = seen[low] - parts[low]
    excess = highest_mib - resident - (parts[high] - live)
    if live > _LEAST_LIVE_MIB and excess > live:
        fitted = min(live, MOST_FITTED_MIB)
        unfragmented = found["unfragmented_mib"] = fitted**2 / (excess - live + fitted)
    kept = kept_mib(live, unfragmented)
    found["policy_mib"] = max(highest_mib - parts[high] - kept, 0.0)
    return found


def _figures(profile: Profile, measured: Measured) -> Figures:
    return Figures(**{**assumed(profile), **measured})
