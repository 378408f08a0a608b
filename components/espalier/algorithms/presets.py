"""Presets: combinations of rules, named after the paper that they come from.

Where a paper leaves a number open, the rule's own default is used, which names its source.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast


class Preset(NamedTuple):
    """A whole setting of training, and the paper (or the code) that it comes from."""

    source: str
    settings: Mapping[str, Any]
    """Keys of [training.algorithm]."""
    elsewhere: Mapping[str, Any] = {}
    """Dotted keys of other sections that the rules need. They apply where the profile does not set
    the key."""


_GRPO = {"name": "grpo"}
_CLIP = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}
_WIDE_CLIP = {"name": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28}
_REINFORCE = {"name": "reinforce"}
_KL_IN_REWARD = {"place": "reward", "estimator": "k1"}


def _regenerated(limit: int) -> tuple[Mapping[str, Any], ...]:
    rule = {"name": "zero_variance", "action": "regenerate", "max_regenerations": limit}
    return (rule,)


_DYNAMIC_SAMPLING = (
    {
        "name": "zero_variance",
        "action": "regenerate",
        "max_regenerations": 10,
        "compares": "outcomes",
    },
)
_OVERLONG = {"reward.terms": ({"name": "overlong"},)}
_ONE_UPDATE = {"training.minibatches": 1}
"""One update per step: a loss without a ratio learns half as much, or less, from two."""
_SKIP = ({"name": "zero_variance", "action": "skip"},)

CRITIC_FREE: Mapping[str, Preset] = {
    "default": Preset(
        "DAPO without overlong shaping, with two regenerations at most: the tiny policy's",
        {
            "advantage": _GRPO,
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
            "filters": _regenerated(2),
        },
    ),
    "grpo": Preset(
        "Shao et al. 2024, arXiv:2402.03300, alg. 1",
        {
            "advantage": _GRPO,
            "loss": _CLIP,
            "aggregation": "seq_mean_token_mean",
            "kl": {"estimator": "k3", "coefficient": 0.04},
        },
    ),
    "dapo": Preset(
        "Yu et al. 2025, arXiv:2503.14476, eq. 8, and 13 as a term of the reward; groups of equal "
        "outcomes are drawn again, as often as in the recipe (max_num_gen_batches)",
        {
            "advantage": _GRPO,
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
            "filters": _DYNAMIC_SAMPLING,
        },
        _OVERLONG,
    ),
    "dr_grpo": Preset(
        "Liu et al. 2025, arXiv:2503.20783",
        {"advantage": {"name": "dr_grpo"}, "loss": _CLIP, "aggregation": "constant"},
    ),
    "bnpo": Preset(
        "TRL 1.16, loss_type bnpo: GRPO's advantages, mean over the tokens",
        {"advantage": _GRPO, "loss": _CLIP, "aggregation": "token_mean"},
    ),
    "gspo": Preset(
        "Zheng et al. 2025, arXiv:2507.18071",
        {"advantage": _GRPO, "loss": {"name": "gspo"}, "aggregation": "seq_mean_token_mean"},
    ),
    "luspo": Preset(
        "arXiv:2602.05261: GSPO with each sequence's loss times its length",
        {"advantage": _GRPO, "loss": {"name": "gspo"}, "aggregation": "row_mean_token_sum"},
    ),
    "cispo": Preset(
        "MiniMax-M1, arXiv:2506.13585, eq. 4; the bound of ScaleRL, arXiv:2510.13786",
        {"advantage": _GRPO, "loss": {"name": "cispo"}, "aggregation": "token_mean"},
    ),
    "sapo": Preset(
        "Gao et al. 2025, arXiv:2511.20347",
        {"advantage": _GRPO, "loss": {"name": "sapo"}, "aggregation": "seq_mean_token_mean"},
    ),
    "gmpo": Preset(
        "Zhao et al. 2025, arXiv:2507.20673", {"advantage": _GRPO, "loss": {"name": "gmpo"}}
    ),
    "vespo": Preset(
        "Shen et al. 2026, arXiv:2602.10693",
        {"advantage": _GRPO, "loss": {"name": "vespo"}, "aggregation": "token_mean"},
    ),
    "kl_cov": Preset(
        "Cui et al. 2025, arXiv:2505.22617, eq. 13",
        {"advantage": _GRPO, "loss": {"name": "kl_cov"}, "aggregation": "token_mean"},
    ),
    "clip_cov": Preset(
        "Cui et al. 2025, arXiv:2505.22617, eq. 11",
        {"advantage": _GRPO, "loss": {"name": "clip_cov"}, "aggregation": "token_mean"},
    ),
    "ipo": Preset(
        "prime-rl's ipo loss", {"advantage": {"name": "dr_grpo"}, "loss": {"name": "ipo"}}
    ),
    "maxrl": Preset(
        "arXiv:2602.02710",
        {"advantage": {"name": "max_rl"}, "loss": _WIDE_CLIP, "aggregation": "token_mean"},
    ),
    "grpo_pass_k": Preset(
        "Tang et al. 2025, arXiv:2503.19595",
        {"advantage": {"name": "grpo_pass_k"}, "loss": _CLIP, "aggregation": "token_mean"},
        {"curriculum.screening_rollouts": 0},  # screened groups have several successes
    ),
    "rloo": Preset(
        "Ahmadian et al. 2024, arXiv:2402.14740; the sequence ratio of TRL's trainer",
        {
            "advantage": {"name": "rloo"},
            "loss": {"name": "sequence_ppo_clip"},
            "kl": {**_KL_IN_REWARD, "coefficient": 0.05},
        },
    ),
    "reinforce_pp": Preset(
        "Hu et al. 2025, arXiv:2501.03262, sec. 3.1",
        {
            "advantage": {"name": "reinforce_plus_plus"},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "kl": {**_KL_IN_REWARD, "coefficient": 1e-3},
        },
    ),
    "reinforce_pp_baseline": Preset(
        "Hu et al. 2025, arXiv:2501.03262, sec. 3.2: the penalty is k2, in the loss",
        {
            "advantage": {"name": "reinforce_plus_plus_baseline"},
            "loss": _CLIP,
            "aggregation": "token_mean",
            "kl": {"estimator": "k2", "coefficient": 1e-3},
        },
    ),
    "remax": Preset(
        "Li et al. 2023, arXiv:2310.10505, alg. 1",
        {
            "advantage": {"name": "remax"},
            "loss": _REINFORCE,
            "aggregation": "seq_mean_token_sum",
            "kl": {**_KL_IN_REWARD, "coefficient": 1e-2},
        },
        _ONE_UPDATE,
    ),
    "spo": Preset(
        "arXiv:2509.13232: one rollout of many tasks each, against what is predicted of them",
        {"advantage": {"name": "spo"}, "loss": _WIDE_CLIP, "aggregation": "token_mean"},
        {
            "training.tasks_per_step": 128,
            "training.group_size": 1,
            "training.optimizer.warmup_share": 0.2,
            "curriculum.screening_rollouts": 0,
        },
    ),
    "opo": Preset(
        "Hao et al. 2025, arXiv:2505.23585: exactly on-policy, neither clip nor penalty",
        {"advantage": {"name": "opo"}, "loss": _REINFORCE, "aggregation": "token_mean"},
        _ONE_UPDATE,
    ),
    "otb": Preset(
        "Li et al. 2026, arXiv:2602.07078",
        {"advantage": {"name": "otb"}, "loss": _CLIP, "aggregation": "token_mean"},
    ),
    "turn_credit": Preset(
        "Kevin, Baronio et al. 2025, arXiv:2507.11948: discounted rewards of turns",
        {
            "advantage": {"name": "turn_discounted"},
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
        },
    ),
    "gpg": Preset(
        "Chu et al. 2025, arXiv:2504.02546",
        {
            "advantage": {"name": "gpg"},
            "loss": _REINFORCE,
            "aggregation": "token_mean",
            "filters": _SKIP,
        },
        _ONE_UPDATE,
    ),
}


_CRITIC: Mapping[str, Any] = {}

WITH_CRITIC: Mapping[str, Preset] = {
    "ppo": Preset(
        "Schulman et al. 2017, arXiv:1707.06347, with the penalty in the reward of Ouyang et al. "
        "2022, arXiv:2203.02155, and a lambda of 1: at 0.95 a token 60 tokens before the reward "
        "has 5 % of its credit, and `tiny` learned next to nothing",
        {
            "advantage": {"name": "gae"},
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
            "critic": _CRITIC,
        },
    ),
    "starpo_s": Preset(
        "RAGEN, Wang et al. 2025, arXiv:2504.20073, sec. 3.2: the quarter of the groups whose "
        "rewards vary most; a message that cannot be read costs 0.1, and no form is rewarded",
        {
            "advantage": {"name": "gae"},
            "loss": _WIDE_CLIP,
            "aggregation": "token_mean",
            "entropy_coefficient": 1e-3,
            "filters": ({"name": "group_top_k", "fraction": 0.25},),
            "critic": _CRITIC,
        },
        {
            "training.tasks_per_step": 8,
            "training.group_size": 16,
            "episode.max_turns": 5,
            "reward.format": 0.0,
            "reward.terms": ({"name": "format_penalty", "penalty": 0.1},),
        },
    ),
    "reft": Preset(
        "Luong et al. 2024, arXiv:2401.08967, sec. 3.2 and app. C: PPO from a warm start; its "
        "reward is the verifier's less the KL to that start",
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
        _ONE_UPDATE,
    ),
}


SELECTIVE: Mapping[str, Preset] = {
    "dpo": Preset(
        "Rafailov et al. 2023, arXiv:2305.18290, on pairs from one's own groups as in Agent Q, "
        "arXiv:2408.07199",
        {"material": {"name": "pairs"}, "loss": {"name": "dpo"}},
        {"training.optimizer.learning_rate": 2e-5},  # at 5e-5 the tiny policy unlearned
    ),
    "rft": Preset(
        "Yuan et al. 2023, arXiv:2308.01825: maximum likelihood of one's own successes",
        {
            "material": {"name": "successes"},
            "loss": {"name": "reinforce"},
            "aggregation": "token_mean",
        },
    ),
}


DEFAULT_PRESET = "default"
PRESETS: Mapping[str, Preset] = {**CRITIC_FREE, **WITH_CRITIC, **SELECTIVE}
_OFF = "none"
_RULES = ("material", "advantage", "loss", "kl", "critic")
"""Keys whose value is a table of one rule, which may change single parameters of the preset's."""


def fill_elsewhere(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's tables, completed by the keys of its preset's `elsewhere`.

    Args:
        tables: sections as they were written; not changed.
    """
    filled = dict(tables)
    for key, value in _preset_of(tables).elsewhere.items():
        *parents, leaf = key.split(".")
        table = filled
        for parent in parents:
            child = table.get(parent, {})
            if not isinstance(child, Mapping):  # parsed already, or no section: left unchanged
                break
            table[parent] = table = dict(cast("Mapping[str, Any]", child))
        else:
            table.setdefault(leaf, value)
    return filled


def _preset_of(tables: Mapping[str, Any]) -> Preset:
    """Return the preset that a profile's tables name; an empty one if they name none."""
    table: object = tables
    for key in ("training", "algorithm", "preset"):
        table = cast("Mapping[str, Any]", table).get(key) if isinstance(table, Mapping) else None
    name = DEFAULT_PRESET if table is None else str(table)
    return PRESETS.get(name, Preset("", {}))


def expand_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of an algorithm: those of its preset, overridden by `values`.

    A table without a `name` changes parameters of the preset's rule; one with another name replaces
    the rule, and inherits no parameter. `"none"` removes a part.

    Raises:
        ValueError: there is no such preset; the message names similar ones.
    """
    name = values.get("preset", DEFAULT_PRESET)
    if name not in PRESETS:
        close = difflib.get_close_matches(str(name), PRESETS, n=2)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"there are {', '.join(sorted(PRESETS))}"
        )
        raise ValueError(f'preset = "{name}": no such preset; {hint}')
    settings = dict(PRESETS[name].settings)
    if _replaces(settings.get("loss"), values.get("loss")):
        settings.pop("aggregation", None)  # the preset's aggregation belongs to the preset's loss
    for key, value in values.items():
        if key in _RULES and value == _OFF:
            settings[key] = None
        elif key in _RULES and isinstance(value, Mapping) and key in settings:
            replaces = _replaces(settings[key], value)
            settings[key] = dict(value) if replaces else {**settings[key], **value}
        else:
            settings[key] = value
    return settings | {"preset": name}


def _replaces(preset_rule: Mapping[str, Any] | None, rule: object) -> bool:
    """Return whether `rule` names another rule than the preset's."""
    if not isinstance(rule, Mapping) or preset_rule is None:
        return False
    return "name" in rule and rule["name"] != preset_rule.get("name")
