"""Seconds by stage, and accelerator-hours."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.chain import STAGES
from espalier.config import Profile
from espalier.planning.figures import Figures
from espalier.planning.work import StageWork

_HANDED_ON_S = 0.1
"""Duration of a stage that only passes its input on: reading, checking and writing files."""
_POLICY_LOAD_S = 1.0
"""Time to load a policy and its environment, in a stage that runs one."""


def stage_seconds(
    profile: Profile, figures: Figures, work: Mapping[str, StageWork]
) -> dict[str, float]:
    """Stage -> seconds, in the order of the chain."""
    found = {
        "ingest": figures.ingest_s,
        "synthesize": figures.synthesis_task_s * num_tasks(profile),
        "validate": figures.validation_s,
        "register": figures.register_s,
    }
    trained_s = {
        "prepare_policy": figures.prestage_token_s,
        "continue_pretraining": figures.prestage_token_s,
        "warm_start": figures.sft_token_s,
        "train": figures.update_token_s,
    }
    beside_s = {"prepare_policy": figures.tokenizer_s, "evaluate": figures.scoring_s}
    for stage, of_stage in work.items():
        tokens_s = (
            of_stage.trained_positions * trained_s.get(stage, 0.0)
            + of_stage.rollout_tokens * figures.rollout_token_s
            + of_stage.judged_tokens * figures.judged_token_s
        )
        if tokens_s:
            found[stage] = tokens_s + beside_s.get(stage, 0.0) + _POLICY_LOAD_S
        else:
            found[stage] = _HANDED_ON_S
    return {stage: found[stage] for stage in STAGES}


def work_seconds(seconds: float) -> float:
    """Seconds of a stage without loading its policy, as `stage_seconds` adds them."""
    return max(seconds - _POLICY_LOAD_S, 0.0)


def num_tasks(profile: Profile) -> int:
    """Number of tasks of all splits."""
    config = profile.synthesis
    return config.train_tasks + config.dev_tasks + config.heldout_tasks


def accelerators(profile: Profile, *, here: bool) -> int:
    """Number of accelerators of the stages that run a policy.

    Args:
        profile: the planned profile.
        here: whether this machine has one, which counts if the profile requests none.
    """
    nodes = max(1, profile.kubernetes.ray.workers)
    return profile.kubernetes.gpus.count * nodes or int(here)


def accelerator_hours(seconds: Mapping[str, float], count: int) -> float:
    """Hours of `count` accelerators, summed over the stages that run a policy."""
    used = sum(taken for stage, taken in seconds.items() if STAGES[stage].uses_policy)
    return count * used / 3600
