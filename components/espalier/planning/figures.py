"""Figures that a plan needs from a measurement, and assumed values for those not measured.

Lengths are in tokens, times in seconds, memory in MiB. An action token is one that the policy
wrote; time per action token includes reading prompts and observations, and running tools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from espalier.algorithms.filters import ZeroVariance
from espalier.config import Profile
from espalier.planning.sharing import COMMON_SHARE, PREAMBLE_SHARE

Measured: TypeAlias = Mapping[str, float]
"""Values of some `Figures`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures that are measured or assumed."""

    demonstration_tokens: float
    """Mean length of a demonstration."""
    episode_tokens: float
    """Mean length of a training trajectory."""
    action_tokens: float
    """Mean number of action tokens in it."""
    rollouts_per_place: float
    """Trajectories sampled per trajectory that a step uses (tasks_per_step x group_size): groups
    that screening or a filter drops are drawn again."""
    learned_share: float
    """Share of a step's groups that the update uses, if groups of equal rewards are left out and
    not drawn again."""
    preamble_share: float
    """Share of a trajectory that every prompt begins with; see `sharing`."""
    common_share: float
    """Share of the rest that other trajectories of the same group also have."""
    prestage_token_s: float
    """Reading skill of the tiny policy, a token."""
    sft_token_s: float
    """Supervised fine-tuning, per token of the demonstrations."""
    update_token_s: float
    """Forward and backward pass of the RL update, per position."""
    rollout_token_s: float
    """Sampling in training, per action token."""
    judged_token_s: float
    """Sampling for evaluations, per action token."""
    ingest_s: float
    """The whole stage."""
    synthesis_task_s: float
    """Synthesis per task, including demonstrations and agent texts."""
    validation_s: float
    """The whole stage: its libraries take longer than its rows."""
    tokenizer_s: float
    """What prepares the tiny policy beside its reading: the tokenizer, and the logs for it."""
    scoring_s: float
    """Evaluation apart from episodes: loading, intervals, writing."""
    register_s: float
    """The whole stage."""
    data_mib: float
    """Resident memory of the stages before the policy: libraries, and the family's data."""
    policy_mib: float
    """Resident memory once torch has computed, without the policy's own tensors."""
    unfragmented_mib: float
    """Working memory up to which the process holds only what is alive. Above it, the process holds
    the square divided by this (`memory.kept_mib`): the allocator keeps freed memory."""


_ASSUMED: Measured = {
    "common_share": COMMON_SHARE,
    "prestage_token_s": 1 / 8000,
    "sft_token_s": 1 / 8500,
    "update_token_s": 1 / 6000,
    "rollout_token_s": 1 / 4000,
    "judged_token_s": 1 / 5000,
    "ingest_s": 2.0,
    "synthesis_task_s": 0.0005,
    "validation_s": 6.0,
    "tokenizer_s": 3.0,
    "scoring_s": 2.0,
    "register_s": 2.0,
    "data_mib": 1010.0,
    "policy_mib": 1200.0,
    "unfragmented_mib": 165.0,
}
"""Assumed figures, from runs of shipped profiles: policies of about 0.75 M parameters, on one
thread of an AMD EPYC."""
_LENGTH_SHARE = 0.4
"""Length of a trajectory as a share of episode.max_tokens; 0.2 to 0.6 in those profiles."""
_ACTION_SHARE = 0.45
"""Share of action tokens in a trajectory."""
_PASS_RATES = 0.3
"""Both parameters of a Beta distribution of the tasks' pass rates, most of them near 0 or 1. It
predicts `rollouts_per_place` of 2.08 for runs that screen 2 trajectories of 8 (measured: 1.66 to
2.44, median 2.03, in 13 runs of customer_service, function_calling, mixture, shop and sql), 1.48
for 4 of 16, as in tiny (measured: 1.60 in one run), and 2.15 for runs that draw whole groups of 8
again, as in code (measured: 1.96 to 2.10 in three runs)."""


def assumed(profile: Profile) -> Measured:
    """Assumed value of every figure."""
    length = _LENGTH_SHARE * profile.episode.max_tokens
    return {
        **_ASSUMED,
        "demonstration_tokens": length,
        "episode_tokens": length,
        "action_tokens": _ACTION_SHARE * length,
        "rollouts_per_place": _rollouts_per_place(profile),
        "learned_share": _learned_share(profile),
        "preamble_share": 0.0 if profile.policy.model is None else PREAMBLE_SHARE,
    }


def _rollouts_per_place(profile: Profile) -> float:
    """`Figures.rollouts_per_place`, from the assumed distribution of pass rates."""
    config, screened = profile.training, profile.curriculum.active_screening
    if screened:
        # per kept task, others were dropped of which only the screening rollouts were sampled
        return 1 + screened / config.group_size * (1 / _share_mixed(screened) - 1)
    again = max((rule.regenerations for rule in config.algorithm.group_filters), default=0)
    return min(1 / _share_mixed(config.group_size), 1.0 + again)


def _leaves_groups_out(profile: Profile) -> bool:
    """Whether training drops groups of equal rewards without replacing them."""
    filters = profile.training.algorithm.group_filters
    skips = any(isinstance(rule, ZeroVariance) and rule.action == "skip" for rule in filters)
    return skips and not profile.curriculum.active_screening


def _learned_share(profile: Profile) -> float:
    return _share_mixed(profile.training.group_size) if _leaves_groups_out(profile) else 1.0


def _share_mixed(count: int) -> float:
    """Share of the tasks whose `count` trajectories are neither all right nor all wrong."""
    if count < 2:  # nothing is compared, and nothing drawn again
        return 1.0
    all_right = math.prod((_PASS_RATES + n) / (2 * _PASS_RATES + n) for n in range(count))
    return 1 - 2 * all_right


_BY_PARAMETER = (
    "prestage_token_s",
    "sft_token_s",
    "update_token_s",
    "rollout_token_s",
    "judged_token_s",
)
_LEAST_RATIO = 1 / 3
"""Least factor of time per token for smaller policies, which spend it between operations."""
_LARGER = 0.87
"""Exponent of time per token over parameters: a small policy's operations are far from a core's
peak. With 179 times the parameters (SmolLM2 against 0.75 M) a token took 84 to 103 times as long,
corrected for threads: exponents of 0.85 in sampling, 0.86 in the warm start, 0.89 in the update."""
_SECOND_THREAD = 0.68
"""Exponent of the speed-up by threads: two decode 1.6 times as fast as one (2 ** 0.68)."""


class Calibration(NamedTuple):
    """Figures of a plan, and the source of each."""

    figures: Figures
    sources: Mapping[str, str]
    """Name of a figure -> "assumed" or "probe"."""

    @property
    def assumed(self) -> list[str]:
        """Names of the figures that were not measured, sorted."""
        return sorted(name for name, source in self.sources.items() if source == "assumed")


_ASSUMED_PARAMETERS = 750_000
"""Size of the policy with which the assumed times per token were measured, on one thread."""


def calibrated(profile: Profile, parameters: int, measured: Measured) -> Calibration:
    """Complete a probe's figures with assumed ones.

    Assumed times per token are scaled with the parameters, though not in full proportion: a token
    takes about 2 operations per parameter forward and 4 backward (Kaplan et al. 2020,
    arXiv:2001.08361, sec. 2.1).

    Args:
        profile: the planned profile.
        parameters: number of its policy's parameters.
        measured: figures from a probe; empty without one.
    """
    size = max((parameters / _ASSUMED_PARAMETERS) ** _LARGER, _LEAST_RATIO)
    factor = size * profile.threads**-_SECOND_THREAD
    figures = {
        name: value * factor if name in _BY_PARAMETER else value
        for name, value in assumed(profile).items()
    }
    sources = {name: "probe" if name in measured else "assumed" for name in figures}
    return Calibration(Figures(**{**figures, **measured}), sources)
