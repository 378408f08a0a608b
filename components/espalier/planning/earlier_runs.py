"""What earlier runs measured: their profiles, seconds, peaks and histories, as `Figures`.

Every figure is the inverse of the formula that it is put into: a run that is planned from itself
alone comes out as it was. Of a run whose policy hardly trained, as a probe, that holds for seconds
by the token and for memory, by the lengths that its own episodes had; what it says of lengths is
what they will be once the policy acts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from espalier.config import Profile
from espalier.planning.durations import num_tasks, work_seconds
from espalier.planning.figures import (
    Compute,
    Figures,
    Measured,
    assumed,
    leaves_groups_out,
    median,
    rescaled,
)
from espalier.planning.memory import (
    MOST_FITTED_MIB,
    Placement,
    kept_mib,
    live_mib,
    stage_memory,
)
from espalier.planning.sharing import (
    Sharing,
    sharing_behind_prompts,
    sharing_of_groups,
    sharing_of_run,
)
from espalier.planning.sizes import PolicySize, policy_size
from espalier.planning.work import passes, places, work_of
from espalier.records import EspalierError
from espalier.records.trajectory import Trajectory, read_trajectories
from espalier.reporting.run_directory import RunDirectory, open_run
from espalier.steps.profiles import saved_profile

PROBES = "probes"
"""Folder of probes among the runs; each is a run of its own."""
_PROFILE = "profile.json"
_DATA_STAGES = ("ingest", "synthesize", "validate")
_MOST_RUNS = 24
"""Newest runs that are read; a folder of hundreds would take minutes."""
_LEARNED_STEPS = 10
"""Training steps from which on the lengths of a run's episodes are those of a policy that acts."""
_FORWARDED = ("update_tokens", "update_positions")
_PRESTAGE_RATE = "prestage_tokens_per_s"
_LEAST_LIVE_MIB = 100.0
"""Working memory from which on a run says something of the allocator."""
_OF_TASKS = (
    "demonstration_tokens",
    "episode_tokens",
    "action_tokens",
    "rollouts_per_place",
    "learned_share",
    "preamble_share",
    "common_share",
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
    compute: Compute
    """What its times by the token were measured on."""


def read_run(name: str, profile: Profile, run_dir: Path) -> EarlierRun:
    """What the run in a folder says.

    Raises:
        ArtifactError: no run, or a file that was damaged after publishing.
        PolicyError: a given model of which config.json or weights cannot be read any more.
    """
    size = policy_size(profile.policy)
    measured = figures_of(profile, run_dir, size)
    return EarlierRun(name, profile, measured, Compute(size.parameters, profile.threads))


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
            profile = saved_profile(path.read_text(encoding="utf-8"))
            run = read_run(path.parent.name, profile, path.parent)
        except (ValueError, KeyError, EspalierError, OSError):
            run = None
        if run is not None and run.measured:
            runs.read.append(run)
        else:
            runs.passed_over.append(path.parent.name)
    return runs


def layers_for(
    profile: Profile, runs: Sequence[EarlierRun], asked: Compute
) -> list[tuple[str, Measured]]:
    """Medians of the runs by their likeness to `profile`, the most alike last.

    A run of another environment says how fast this machine computes; of the same one also how long
    episodes are; with the same policy and limits too, all of it as it is.

    Args:
        profile: that is planned.
        runs: all that are known.
        asked: what the profile computes on.
    """
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


def figures_of(profile: Profile, run_dir: Path, size: PolicySize) -> dict[str, float]:
    """Everything that a run's folder says; {} where it has measured nothing.

    Args:
        profile: that the run was made with.
        run_dir: its folder; stages may be missing.
        size: of its policy.

    Raises:
        ArtifactError: no run, or a file that was damaged after publishing.
    """
    run = open_run(run_dir)
    history = _history(run, "train", "rollouts", "action_tokens")
    if history is not None:
        # a run that stopped early did the work of the steps that it did
        changed = {"steps": len(history), "layout": run.measured("train")["layout"]}
        config = profile.training.model_copy(update=changed)
        profile = profile.model_copy(update={"training": config})
    made = _Made(
        run,
        profile,
        size,
        history,
        is_trained=history is not None and len(history) >= _LEARNED_STEPS,
    )
    measured = _lengths(made)
    own = {**measured, **_own_lengths(made)}
    measured |= _stage_seconds(run, profile)
    seconds = _token_seconds(made, own)
    return measured | seconds | _memory(made, own)


def _history(run: RunDirectory, stage: str, *columns: str) -> pd.DataFrame | None:
    """A stage's history with at least one step and these columns; None where it has none."""
    found = run.table(stage, "history.parquet")
    if found is None or not len(found) or not set(columns) <= set(found.columns):
        return None
    return found


def _total(history: pd.DataFrame, column: str) -> float:
    """The sum of a column; a step that has no such figure counts as 0."""
    return sum(value for value in history[column].tolist() if not math.isnan(value))


def _filled(profile: Profile, measured: Measured) -> Figures:
    return Figures(**{**assumed(profile), **measured})


class _Made(NamedTuple):
    """A run that is read."""

    run: RunDirectory
    profile: Profile
    """With the steps and the layout that it had."""
    size: PolicySize
    history: pd.DataFrame | None
    """Of reinforcement learning."""
    is_trained: bool
    """Whether its policy acts as that of a whole run."""

    @property
    def last_step(self) -> list[Trajectory]:
        """The trajectories of the last step of reinforcement learning."""
        artifact = self.run.artifacts.get("train")
        path = artifact.file("trajectories.parquet") if artifact else None
        return read_trajectories(path) if path is not None else []


def _lengths(made: _Made) -> dict[str, float]:
    """Lengths that a whole run would have."""
    run, profile = made.run, made.profile
    found: dict[str, float] = {}
    imitated = _history(run, "warm_start", "tokens")
    if imitated is not None:
        tokens = fmean(imitated["tokens"].tolist()) / profile.warm_start.trajectories_per_step
        found["demonstration_tokens"] = tokens
        if share := _written_share(run, imitated):
            # before the policy acts, its episodes are planned as the teacher's
            found["episode_tokens"] = tokens
            found["action_tokens"] = share * tokens
    if made.is_trained:
        return found | _own_lengths(made)
    return found | _as_figures(
        sharing_behind_prompts(made.last_step, found.get("episode_tokens", 0.0))
    )


def _own_lengths(made: _Made) -> dict[str, float]:
    """Lengths that the run's own episodes had."""
    found: dict[str, float] = {}
    history, profile = made.history, made.profile
    if history is None:
        return found
    counts = history["rollouts"].tolist()
    sampled = [after - before for before, after in zip([0.0, *counts], counts, strict=False)]
    if sum(sampled) > 0:
        tokens = zip(history["action_tokens"].tolist(), sampled, strict=True)
        found["action_tokens"] = sum(each * count for each, count in tokens) / sum(sampled)
        found["rollouts_per_place"] = sum(sampled) / places(profile)
    last = made.last_step
    found |= _as_figures(_sharing(history, profile, last))
    if leaves_groups_out(profile) and "informative_share" in history.columns:
        found["learned_share"] = fmean(history["informative_share"].tolist())
    if last and "action_tokens" in found:
        written = sum(sum(one.action_mask) for one in last) or 1
        # the last step's episodes are shorter than the first one's: in proportion
        ratio = sum(len(one.token_ids) for one in last) / written
        found["episode_tokens"] = min(
            ratio * found["action_tokens"], float(profile.episode.max_tokens)
        )
    return found


def _sharing(history: pd.DataFrame, profile: Profile, last: Sequence[Trajectory]) -> Sharing | None:
    of_last = sharing_of_groups(last)
    if {*_FORWARDED} <= set(history.columns):
        tokens, positions = (_total(history, name) for name in _FORWARDED)
        preamble = of_last.preamble if of_last else 0.0
        found = sharing_of_run(profile, tokens=tokens, positions=positions, preamble=preamble)
        if found is not None:
            return found
    return of_last


def _as_figures(sharing: Sharing | None) -> dict[str, float]:
    if sharing is None:
        return {}
    return {"preamble_share": sharing.preamble, "common_share": sharing.group}


def _written_share(run: RunDirectory, imitated: pd.DataFrame) -> float:
    """Share of the demonstrations that the teacher wrote."""
    if "scored_tokens" in imitated.columns:
        return _total(imitated, "scored_tokens") / max(1.0, _total(imitated, "tokens"))
    artifact = run.artifacts.get("validate")
    path = artifact.file("trajectories.parquet") if artifact else None
    return 0.0 if path is None else _written_characters(read_trajectories(path))


def _written_characters(demonstrations: Sequence[Trajectory]) -> float:
    """Share of the characters: demonstrations of runs that did not count tokens."""
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


def _token_seconds(made: _Made, measured: Measured) -> dict[str, float]:
    run, profile = made.run, made.profile
    found: dict[str, float] = {}
    work = work_of(profile, _filled(profile, measured))
    prepared, of_prestage = _spent(run, "prepare_policy"), work["prepare_policy"].trained_tokens
    if prepared is not None and (rate := run.measured("prepare_policy").get(_PRESTAGE_RATE)):
        # logs are written and the tokenizer is trained beside it
        found["prestage_token_s"] = 1 / float(rate)
        found["tokenizer_s"] = max(prepared - of_prestage / float(rate), 0.0)
    found |= _judged_seconds(made, work["evaluate"].judged_tokens)
    warm, of_warm = run.measured("warm_start"), work["warm_start"]
    if rate := warm.get("sft_tokens_per_s"):
        found["sft_token_s"] = 1 / float(rate)
    trained, of_train = _spent(run, "train"), work["train"]
    waited = run.measured("train").get("learner_wait_share")
    if trained is not None and waited is not None and of_train.rollout_tokens:
        found["rollout_token_s"] = float(waited) * trained / of_train.rollout_tokens
        dev_s = of_train.judged_tokens * found.get("judged_token_s", found["rollout_token_s"])
        learned_s = max((1 - float(waited)) * trained - dev_s, 0.0)
        if learned_s:
            found["update_token_s"] = learned_s / of_train.trained_positions
    if not made.is_trained and (update_s := _update_position_s(made)) is not None:
        found["update_token_s"] = update_s  # a few steps do not outweigh what is done once
    # the dev questions of the warm start have fewer rows side by side than the evaluation has
    warm_s = _spent(run, "warm_start")
    if warm_s is not None and "judged_token_s" not in found and of_warm.judged_tokens:
        left_s = warm_s - of_warm.trained_tokens * found.get("sft_token_s", 0.0)
        if left_s > 0:
            found["judged_token_s"] = left_s / of_warm.judged_tokens
    return found


def _spent(run: RunDirectory, stage: str) -> float | None:
    seconds = _seconds(run, stage)
    return None if seconds is None else work_seconds(seconds)


def _judged_seconds(made: _Made, planned_tokens: float) -> dict[str, float]:
    judged_s = _spent(made.run, "evaluate")
    policies = made.run.measured("evaluate").get("policies")
    if judged_s is None or not policies:
        return {}
    tokens = planned_tokens
    if not made.is_trained and all("action_tokens" in one for one in policies.values()):
        tokens = sum(float(one["action_tokens"]) for one in policies.values())
    if not tokens:
        return {}
    played_s = min(sum(float(one["seconds"]) for one in policies.values()), judged_s)
    return {"judged_token_s": played_s / tokens, "scoring_s": judged_s - played_s}


def _update_position_s(made: _Made) -> float | None:
    """Seconds of one pass over a position; None where the run did not measure its updates."""
    speed = made.run.measured("train")
    if not {"update_s", "update_positions"} <= set(speed) or not speed["update_positions"]:
        return None
    passed = float(speed["update_positions"]) * passes(made.profile.training.algorithm)
    return float(speed["update_s"]) / passed


def _memory(made: _Made, measured: Measured) -> dict[str, float]:
    """Resident memory, and what the allocator keeps, from the peaks of two stages.

    The stage in which least lives says what is resident. The highest peak counts as that of the
    stage in which most lives: what was kept there is still held in the stages after it.
    """
    run, profile, size = made.run, made.profile, made.size
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
        fitted = min(live, MOST_FITTED_MIB)
        unfragmented = found["unfragmented_mib"] = fitted**2 / (excess - live + fitted)
    kept = kept_mib(live, unfragmented)
    found["policy_mib"] = max(highest_mib - parts[high] - kept, 0.0)
    return found
