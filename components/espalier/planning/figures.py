"""What a plan has to be told by measurement, and what it assumes where nothing was measured.

Lengths in tokens, times in seconds, memory in MiB. An action token is one that the policy wrote;
time by the action token holds the reading of prompts and observations, and the tools.
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
"""Some of `Figures`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that is measured or assumed."""

    demonstration_tokens: float
    """A demonstration, mean."""
    episode_tokens: float
    """A trajectory of training, mean."""
    action_tokens: float
    """The part of it that the policy wrote, mean."""
    rollouts_per_place: float
    """Trajectories that a step samples, for each of its tasks_per_step x group_size places: groups
    that the screening or a filter drops are drawn anew."""
    learned_share: float
    """Share of a step's groups that the update learns from, where those of equal rewards are left
    out and none drawn anew."""
    preamble_share: float
    """Share of a trajectory that every prompt begins with; see `sharing`."""
    common_share: float
    """Share of the rest that other trajectories of the same group have too."""
    prestage_token_s: float
    """Reading skill of the tiny policy, a token."""
    sft_token_s: float
    """Imitation, a token of the demonstrations."""
    update_token_s: float
    """A position that the update forwards and backwards once."""
    rollout_token_s: float
    """Sampling in training, an action token."""
    judged_token_s: float
    """Sampling where scores are compared, an action token."""
    ingest_s: float
    """The stage as a whole."""
    synthesis_task_s: float
    """A task, demonstrations and agent texts included."""
    validation_s: float
    """The stage as a whole: its libraries take longer than its rows."""
    tokenizer_s: float
    """What prepares the tiny policy beside its reading: the tokenizer, and the logs for it."""
    scoring_s: float
    """What an evaluation takes beside the episodes: loading, intervals, writing."""
    register_s: float
    """The stage as a whole."""
    data_mib: float
    """Resident in the stages before the policy: libraries, and the family's data."""
    policy_mib: float
    """Resident once torch has computed, without the policy's own tensors."""
    unfragmented_mib: float
    """Up to this much working memory, the process holds what lives at one time. Of more it holds
    the square divided by this (`memory.kept_mib`): freed memory stays with the allocator."""


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
"""A trajectory's length as a share of episode.max_tokens; those profiles' lie at 0.2 to 0.6."""
_ACTION_SHARE = 0.45
"""Share of a trajectory that the policy wrote."""
_PASS_RATES = 0.3
"""Both parameters of a Beta distribution of the tasks' pass rates, most near 0 or 1. With it, runs
that screen 2 trajectories of 8 sample 2.08 for each place (13 runs of customer_service,
function_calling, mixture, shop and sql did 1.66 to 2.44, median 2.03), those that screen 4 of 16,
as tiny, 1.48 (one run did 1.60), and those that draw whole groups of 8 anew, as code, 2.15 (three
did 1.96 to 2.10)."""


def assumed(profile: Profile) -> Measured:
    """Every figure as it is assumed where nothing was measured."""
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
    """Trajectories for each place, those of tasks and groups that are drawn anew included."""
    config, screened = profile.training, profile.curriculum.active_screening
    if screened:
        # each task that is kept stands for others of which only the screened ones were sampled
        return 1 + screened / config.group_size * (1 / _share_mixed(screened) - 1)
    again = max((rule.regenerations for rule in config.algorithm.group_filters), default=0)
    return min(1 / _share_mixed(config.group_size), 1.0 + again)


def _leaves_groups_out(profile: Profile) -> bool:
    """Whether training drops groups of equal rewards and samples no others in their place."""
    filters = profile.training.algorithm.group_filters
    skips = any(isinstance(rule, ZeroVariance) and rule.action == "skip" for rule in filters)
    return skips and not profile.curriculum.active_screening


def _learned_share(profile: Profile) -> float:
    return _share_mixed(profile.training.group_size) if _leaves_groups_out(profile) else 1.0


def _share_mixed(count: int) -> float:
    """Share of the tasks of which `count` trajectories are neither all right nor all wrong."""
    if count < 2:  # nothing is compared, and nothing drawn anew
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
"""Time by the token stops shrinking with the policy: small ones spend it between operations."""
_LARGER = 0.87
"""Exponent of the time by parameters: a small policy's operations are far from a core's peak. With
179 times the parameters (SmolLM2 for 0.75 M) a token took 84 to 103 times as long, two threads for
one counted: 0.85 in sampling, 0.86 in the warm start, 0.89 in the update."""
_SECOND_THREAD = 0.68
"""Exponent of the speed-up by threads: two decode 1.6 times as fast as one (2 ** 0.68)."""


class Calibration(NamedTuple):
    """The figures of a plan, and where each comes from."""

    figures: Figures
    sources: Mapping[str, str]
    """Name of a figure -> "assumed" or "probe"."""

    @property
    def assumed(self) -> list[str]:
        """Names of the figures that nobody has measured."""
        return sorted(name for name, source in self.sources.items() if source == "assumed")


_ASSUMED_PARAMETERS = 750_000
"""Size of the policy that the assumed times a token were measured with, on one thread."""


def calibrated(profile: Profile, parameters: int, measured: Measured) -> Calibration:
    """Fill what a probe measured with what is assumed.

    Where no probe was run, a token's time follows from arithmetic: it takes about 2 operations a
    parameter forward and 4 backward (Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1), so times go
    with the parameters, if not in full proportion.

    Args:
        profile: that is planned.
        parameters: of its policy.
        measured: by a probe; empty without one.
    """
    size = max((parameters / _ASSUMED_PARAMETERS) ** _LARGER, _LEAST_RATIO)
    factor = size * profile.threads**-_SECOND_THREAD
    figures = {
        name: value * factor if name in _BY_PARAMETER else value
        for name, value in assumed(profile).items()
    }
    sources = {name: "probe" if name in measured else "assumed" for name in figures}
    return Calibration(Figures(**{**figures, **measured}), sources)
