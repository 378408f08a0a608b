"""Presets with a critic: advantages are measured against a learned value of the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.algorithms.presets.preset import Preset

_CLIP: Mapping[str, Any] = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}
_WIDE_CLIP: Mapping[str, Any] = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
_CRITIC: Mapping[str, Any] = {}

WITH_CRITIC: Mapping[str, Preset] = {
    "ppo": Preset(
        "Schulman et al. 2017, arXiv:1707.06347, with the penalty in the reward of Ouyang et al. "
        "2022, arXiv:2203.02155",
        {
            "advantage": {"name": "gae", "gae_lambda": 0.95},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "kl": {"place": "reward", "estimator": "k1", "coefficient": 1e-3},
            "critic": _CRITIC,
        },
    ),
    "vapo": Preset(
        "Yue et al. 2025, arXiv:2504.05118; without its likelihood term on successes",
        {
            "advantage": {"name": "length_adaptive_gae"},
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
            "critic": {"warmup_steps": 50},
        },
    ),
    "starpo_s": Preset(
        "RAGEN, Wang et al. 2025, arXiv:2504.20073, sec. 3.2: the quarter of the groups whose "
        "rewards vary most",
        {
            "advantage": {"name": "gae"},
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
            "entropy_coefficient": 1e-3,
            "filters": ({"name": "group_top_k", "fraction": 0.25},),
            "critic": _CRITIC,
        },
    ),
    "reft": Preset(
        "Luong et al. 2024, arXiv:2401.08967, sec. 3.2 and app. C: PPO from a warm start, paid by "
        "a verifier less the KL to that start",
        {
            "advantage": {"name": "gae", "gae_lambda": 0.95},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "kl": {"place": "reward", "estimator": "k1", "coefficient": 0.05},
            "critic": _CRITIC,
        },
    ),
    "turn_ppo": Preset(
        "Li et al. 2025, arXiv:2512.17008: a turn is a step",
        {
            "advantage": {"name": "turn_gae"},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "critic": _CRITIC,
        },
    ),
    "bi_level_ppo": Preset(
        "VAGEN, Wang et al. 2025, arXiv:2510.16907, sec. 4.2",
        {
            "advantage": {"name": "bi_level_gae"},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "critic": _CRITIC,
        },
    ),
    "v_trace": Preset(
        "IMPALA, Espeholt et al. 2018, arXiv:1802.01561: an actor-critic for stale data",
        {
            "advantage": {"name": "v_trace"},
            "loss": {"name": "reinforce"},
            "aggregation": "token_mean",
            "proximal": "recomputed",
            "entropy_coefficient": 1e-3,
            "critic": _CRITIC,
        },
    ),
}
