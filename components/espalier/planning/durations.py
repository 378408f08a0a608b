"""Seconds by stage, and accelerator-hours."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.chain import STAGES
from espalier.config import Profile
from espalier.planning.figures import Figures
from espalier.planning.pace import Attempts, Learner, Samplers, simulated
from espalier.planning.work import StageWork

_HANDED_ON_S = 0.1
"""Duration of a stage that only passes its input on: reading, checking and writing files."""
_POLICY_LOAD_S = 1.0
"""Time to load a policy and its environment, in a stage that runs one."""
_FIXED_SHARE = 0.31
"""Share of a decoding step's time that does not depend on the number of rows: on two cores of an
AMD EPYC SmolLM2 decodes 430 tokens a second with 64 rows and 510 with 128."""
_MOST_AHEAD = 32
"""Largest staleness that is simulated, beyond what all rows together hold."""
_MOST_SIMULATED = 1024
"""Most attempts of a simulated step; of more, a part is simulated, at a part of the rate."""

_TOKENS = 1000.0
"""Action tokens of a simulated attempt; only relative times are used."""


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
        learning_s = of_stage.trained_positions * trained_s.get(stage, 0.0)
        sampling_s = of_stage.rollout_tokens * figures.rollout_token_s
        judged_s = of_stage.judged_tokens * figures.judged_token_s
        if stage == "train" and sampling_s and is_simulated(profile):
            tokens_s = _steps_seconds(profile, learning_s, sampling_s)
        else:
            tokens_s = learning_s + sampling_s * _pool_share(profile)
        tokens_s += judged_s * _pool_share(profile)
        if tokens_s:
            found[stage] = tokens_s + beside_s.get(stage, 0.0) + _POLICY_LOAD_S
        else:
            found[stage] = _HANDED_ON_S
    return {stage: found[stage] for stage in STAGES}


def is_simulated(profile: Profile) -> bool:
    """Whether samplers are machines of their own, and several or ahead of the learner."""
    training = profile.training
    apart = profile.rollout.engine == "vllm" or training.rollout_workers > 0
    return apart and (_samplers(profile) > 1 or training.asynchronous.max_staleness > 0)


def _samplers(profile: Profile) -> int:
    """Number of machines that sample training's episodes: servers, or rollout workers."""
    urls = profile.rollout.vllm.urls if profile.rollout.engine == "vllm" else ()
    return max(1, len(urls), profile.training.rollout_workers)


def _pool_share(profile: Profile) -> float:
    """Time of sampling at the servers of a profile, as a share of that at one of them."""
    servers = len(profile.rollout.vllm.urls) if profile.rollout.engine == "vllm" else 1
    return _FIXED_SHARE + (1 - _FIXED_SHARE) / max(1, servers)


def _steps_seconds(profile: Profile, learning_s: float, sampling_s: float) -> float:
    """Seconds of all RL steps where samplers and learner are machines of their own.

    The sum, which is measured or estimated for one server that alternates with the learner, is
    changed in the proportion that the simulation finds between both.

    Args:
        profile: the planned profile.
        learning_s: seconds of all updates.
        sampling_s: seconds of all sampling by one server.
    """
    config, num_samplers = profile.training, _samplers(profile)
    groups = max(1, min(config.tasks_per_step, _MOST_SIMULATED // config.group_size))
    part = groups / config.tasks_per_step
    count = groups * config.group_size
    most_rows = max(1, round(profile.rollout.max_rows * part))
    rows = min(most_rows, count)
    row_step_s = sampling_s / config.steps * rows / (count * _TOKENS)
    learner = Learner(update_s=learning_s / config.steps, token_s=0.0)
    attempts = Attempts(
        groups=groups, group_size=config.group_size, action_tokens=_TOKENS, trained_tokens=_TOKENS
    )

    def step_s(servers: int, max_staleness: int) -> float:
        # servers divide rollout.max_rows among them; each rollout worker may have that many
        are_workers = config.rollout_workers > 0
        samplers = Samplers(
            servers=servers,
            rows=most_rows if are_workers else -(-most_rows // servers),
            step_s=_FIXED_SHARE * row_step_s,
            row_s=(1 - _FIXED_SHARE) * row_step_s / rows,
        )
        return simulated(samplers, learner, attempts, max_staleness=max_staleness).step_s

    in_flight = num_samplers * (most_rows if config.rollout_workers else 1) // count
    ahead = min(config.asynchronous.max_staleness, _MOST_AHEAD + in_flight)
    return (learning_s + sampling_s) * step_s(num_samplers, ahead) / step_s(1, 0)


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
    return profile.kubernetes.gpus.count * profile.kubernetes.nodes or int(here)


def accelerator_hours(seconds: Mapping[str, float], count: int) -> float:
    """Hours of `count` accelerators, summed over the stages that run a policy."""
    used = sum(taken for stage, taken in seconds.items() if STAGES[stage].uses_policy)
    return count * used / 3600
