"""What earlier runs measured: their profiles, seconds, peaks and histories, as `Figures`.

Every figure is the inverse of the formula that it is put into: a run that is planned from itself
alone comes out as it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from espalier.config import Profile, read_saved_profile
from espalier.planning.durations import num_tasks, work_seconds
from espalier.planning.figures import (
    Compute,
    Figures,
    Measured,
    assumed,
    median,
    rescaled,
)
from espalier.planning.memory import Placement, kept_mib, live_mib, stage_memory
from espalier.planning.sizes import policy_size
from espalier.planning.work import places, work_of
from espalier.records import EspalierError
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.run_directory import RunDirectory, open_run

PROBES = "probes"
"""Folder of probes among the runs; each is a run of its own."""
_PROFILE = "profile.json"
_DATA_STAGES = ("ingest", "synthesize", "validate")
_MOST_RUNS = 24
"""Newest runs that are read; a folder of hundreds would take minutes."""
_LEARNED_STEPS = 10
"""Training steps from which on the lengths of a run's episodes are those of a policy that acts."""
_PRESTAGE_RATE = "prestage_tokens_per_s"
_LEAST_LIVE_MIB = 100.0
"""Working memory from which on a run says something of the allocator."""
_OF_TASKS = (
    "demonstration_tokens",
    "episode_tokens",
    "action_tokens",
    "rollouts_per_place",
    "ingest_s",
    "synthesis_task_s",
    "data_mib",
)
"""Figures that say nothing of another environment."""


class EarlierRun(NamedTuple):
    """What one run says."""

    name: str
    profile: Profile
    measured: Measured

    @property
    def compute(self) -> Compute:
        """What its times by the token were measured on."""
        return Compute(policy_size(self.profile.policy).parameters, self.profile.threads)


class EarlierRuns(NamedTuple):
    """What is found below a folder of runs."""

    read: list[EarlierRun]
    """The newest first."""
    passed_over: list[str]
    """Names of folders that say nothing: of a version that is not read any more, or damaged."""


def earlier_runs(runs_dir: Path) -> EarlierRuns:
    """Read the newest runs and probes below a folder; there need not be any."""
    found = [*runs_dir.glob(f"*/{_PROFILE}"), *runs_dir.glob(f"{PROBES}/*/{_PROFILE}")]
    found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    runs = EarlierRuns([], [])
    for path in found[:_MOST_RUNS]:
        try:
            profile = read_saved_profile(path.read_text(encoding="utf-8"))
            run = EarlierRun(path.parent.name, profile, figures_of(profile, path.parent))
        except (ValueError, EspalierError, OSError):
            run = None
        if run is not None and run.measured:
            runs.read.append(run)
        else:
            runs.passed_over.append(path.parent.name)
    return runs


def layers_for(profile: Profile, runs: Sequence[EarlierRun]) -> list[tuple[str, Measured]]:
    """Medians of the runs by their likeness to `profile`, the most alike last.

    A run of another environment says how fast this machine computes; of the same one also how long
    episodes are; with the same policy and limits too, all of it as it is.
    """
    asked = Compute(policy_size(profile.policy).parameters, profile.threads)
    layers: list[tuple[str, Measured]] = []
    for degree in range(3):
        alike = [run for run in runs if _likeness(run.profile, profile) == degree]
        if not alike:
            continue
        found = median([rescaled(run.measured, run.compute, asked) for run in alike])
        if degree == 0:
            found = {name: value for name, value in found.items() if name not in _OF_TASKS}
        names = sorted({run.name for run in alike})
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        layers.append((shown, found))
    return layers


def _likeness(made: Profile, asked: Profile) -> int:
    if made.environment.name != asked.environment.name:
        return 0
    same = (
        made.environment == asked.environment
        and made.episode == asked.episode
        and _architecture(made) == _architecture(asked)
    )
    return 1 + same


def _architecture(profile: Profile) -> object:
    return profile.policy.model_dump(exclude={"prestage", "start"})


def figures_of(profile: Profile, run_dir: Path) -> dict[str, float]:
    """Everything that a run's folder says; {} where it has measured nothing.

    Args:
        profile: that the run was made with.
        run_dir: its folder; stages may be missing.

    Raises:
        ArtifactError: no run, or a file that was damaged after publishing.
        PolicyError: a given model of which config.json or weights cannot be read any more.
    """
    run = open_run(run_dir)
    history = _history(run, "train", "rollouts", "action_tokens")
    if history is not None:
        # a run that stopped early did the work of the steps that it did
        config = profile.training.model_copy(update={"steps": len(history)})
        profile = profile.model_copy(update={"training": config})
    measured = _lengths(run, profile, history)
    measured |= _stage_seconds(run, profile)
    measured |= _token_seconds(run, profile, measured)
    return measured | _memory(run, profile, measured)


def _history(run: RunDirectory, stage: str, *columns: str) -> pd.DataFrame | None:
    """A stage's history with at least one step and these columns; None where it has none."""
    found = run.table(stage, "history.parquet")
    if found is None or not len(found) or not set(columns) <= set(found.columns):
        return None
    return found


def _filled(profile: Profile, measured: Measured) -> Figures:
    return Figures(**{**assumed(profile), **measured})


def _lengths(run: RunDirectory, profile: Profile, history: pd.DataFrame | None) -> dict[str, float]:
    found: dict[str, float] = {}
    imitated = _history(run, "warm_start", "tokens")
    if imitated is not None:
        per_step = profile.warm_start.trajectories_per_step
        found["demonstration_tokens"] = fmean(imitated["tokens"].tolist()) / per_step
    shown = run.artifacts.get("validate")
    demonstrations = shown.file("trajectories.parquet") if shown else None
    if demonstrations is not None:
        share = _written_share(read_trajectories(demonstrations))
        if share and "demonstration_tokens" in found:
            # before the policy acts, its episodes are planned as the teacher's
            found["episode_tokens"] = found["demonstration_tokens"]
            found["action_tokens"] = share * found["demonstration_tokens"]
    if history is None or len(history) < _LEARNED_STEPS:
        return found
    counts = history["rollouts"].tolist()
    sampled = [after - before for before, after in zip([0.0, *counts], counts, strict=False)]
    if sum(sampled) > 0:
        tokens = zip(history["action_tokens"].tolist(), sampled, strict=True)
        found["action_tokens"] = sum(each * count for each, count in tokens) / sum(sampled)
        found["rollouts_per_place"] = sum(sampled) / places(profile)
    trained = run.artifacts["train"].file("trajectories.parquet")
    last = read_trajectories(trained) if trained is not None else []
    if last:
        written = sum(sum(one.action_mask) for one in last) or 1
        # the last step's episodes are shorter than the first one's: in proportion
        ratio = sum(len(one.token_ids) for one in last) / written
        found["episode_tokens"] = min(
            ratio * found["action_tokens"], float(profile.episode.max_tokens)
        )
    return found


def _written_share(demonstrations: Sequence[Trajectory]) -> float:
    """Share of the characters that the teacher wrote: its demonstrations have no tokens yet."""
    lengths = {True: 0, False: 0}
    for demonstration in demonstrations:
        for message in demonstration.messages:
            called = sum(
                len(call.name) + len(json.dumps(call.arguments)) for call in message.tool_calls
            )
            length = len(message.content) + len(message.thought or "") + called
            lengths[message.role == "assistant"] += length
    return lengths[True] / max(1, sum(lengths.values()))


def _stage_seconds(run: RunDirectory, profile: Profile) -> dict[str, float]:
    found: dict[str, float] = {}
    whole = {"ingest": "ingest_s", "validate": "validation_s", "register": "register_s"}
    for stage, name in whole.items():
        if (seconds := _seconds(run, stage)) is not None:
            found[name] = seconds
    if (seconds := _seconds(run, "synthesize")) is not None:
        found["synthesis_task_s"] = seconds / num_tasks(profile)
    return found


def _seconds(run: RunDirectory, stage: str) -> float | None:
    value = run.measured(stage).get("seconds")
    return float(value) if value else None


def _token_seconds(run: RunDirectory, profile: Profile, measured: Measured) -> dict[str, float]:
    found: dict[str, float] = {}
    work = work_of(profile, _filled(profile, measured))

    def spent(stage: str) -> float | None:
        seconds = _seconds(run, stage)
        return None if seconds is None else work_seconds(seconds)

    prepared, of_prestage = spent("prepare_policy"), work["prepare_policy"].trained_tokens
    if prepared is not None and (rate := run.measured("prepare_policy").get(_PRESTAGE_RATE)):
        # logs are written and the tokenizer is trained beside it
        found["prestage_token_s"] = 1 / float(rate)
        found["tokenizer_s"] = max(prepared - of_prestage / float(rate), 0.0)
    judged, of_judged = spent("evaluate"), work["evaluate"].judged_tokens
    policies = run.measured("evaluate").get("policies") or {}
    if judged is not None and of_judged and policies:
        played_s = min(sum(float(one["seconds"]) for one in policies.values()), judged)
        found["judged_token_s"] = played_s / of_judged
        found["scoring_s"] = judged - played_s
    warm, of_warm = run.measured("warm_start"), work["warm_start"]
    if rate := warm.get("sft_tokens_per_s"):
        found["sft_token_s"] = 1 / float(rate)
    trained, of_train = spent("train"), work["train"]
    waited = run.measured("train").get("learner_wait_share")
    if trained is not None and waited is not None and of_train.rollout_tokens:
        found["rollout_token_s"] = float(waited) * trained / of_train.rollout_tokens
        dev_s = of_train.judged_tokens * found.get("judged_token_s", found["rollout_token_s"])
        learned_s = max((1 - float(waited)) * trained - dev_s, 0.0)
        if learned_s:
            found["update_token_s"] = learned_s / of_train.trained_tokens
    # the dev questions of the warm start have fewer rows side by side than the evaluation has
    warm_s = spent("warm_start")
    if warm_s is not None and "judged_token_s" not in found and of_warm.judged_tokens:
        left_s = warm_s - of_warm.trained_tokens * found.get("sft_token_s", 0.0)
        if left_s > 0:
            found["judged_token_s"] = left_s / of_warm.judged_tokens
    return found


def _memory(run: RunDirectory, profile: Profile, measured: Measured) -> dict[str, float]:
    """Resident memory, and what the allocator keeps, from the peaks of two stages.

    The stage in which least lives says what is resident. The highest peak counts as that of the
    stage in which most lives: what was kept there is still held in the stages after it.
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
    place = Placement(accelerator=False, half_precision=False)
    size = policy_size(profile.policy)
    bare = {**measured, "policy_mib": 0.0, "unfragmented_mib": math.inf}
    figures = _filled(profile, bare)
    work = work_of(profile, figures)
    seen = {stage: peak for stage, peak in peaks.items() if stage in work}
    if not seen:
        return found
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
        unfragmented = found["unfragmented_mib"] = live**2 / excess
    kept = kept_mib(live, unfragmented)
    found["policy_mib"] = max(highest_mib - parts[high] - kept, 0.0)
    return found
