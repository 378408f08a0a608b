"""How many positions an update forwards for each token, where trajectories begin alike.

Of every token of a trajectory, the share c is also in others of its group: the prompt, and turns
that the policy often takes. A minibatch that holds n of a group's trajectories forwards those once
and not n times, so for each token about

    1 - c + c / n    positions, n = trajectories of the group that are learned from / minibatches

In 17 runs of code, customer_service, function_calling, tiny, mixture, shop and sql, c of the last
step's groups was 0.53 to 0.95 (median 0.87), and within 0.05 the same for halves of the groups.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, takewhile
from statistics import fmean

from espalier.algorithms.material import MostVaried
from espalier.config import Profile, TrainingConfig, named_reference
from espalier.records.trajectory import Trajectory

COMMON_SHARE = 0.8
"""The share c where no run has measured it: a quarter of those runs had less."""
_COMMON_BEHIND_PROMPT = 0.7
"""Of what follows the prompt: c by that was within 0.13 of those runs' median for each profile."""


_TREES = frozenset({"lfm2", "llama", "mistral", "qwen2", "qwen3"})
"""Kinds of models that `training.tree_forward` takes, by the name in their config.json."""


def forwards_trees(profile: Profile) -> bool:
    """Whether the update forwards what several trajectories begin with once.

    A given model counts by the kind that its config.json names; of other kinds some do, too.
    """
    config = profile.training
    if config.layout != "prefix_tree" or config.processes > 1:
        return False
    model = profile.policy.directory
    if model is None:
        return True
    config_json = model / "config.json"
    if config_json.is_file():
        return json.loads(config_json.read_bytes()).get("model_type") in _TREES
    named = named_reference(profile.policy.model)
    return named is not None and named.model.shape["model_type"] in _TREES


def learned_per_group(config: TrainingConfig) -> int:
    """Trajectories of each group that the update forwards."""
    material = config.algorithm.material
    if isinstance(material, MostVaried):
        return material.learned(config.group_size)
    return config.group_size


def positions_per_token(profile: Profile, common_share: float) -> float:
    """Positions that the update forwards for each token of its trajectories; 1 if packed."""
    return 1 - common_share * _shared_among(profile) if forwards_trees(profile) else 1.0


def common_share_of_run(profile: Profile, *, tokens: float, positions: float) -> float | None:
    """The share c of a run that forwarded so many tokens; None where it forwards none together."""
    among = _shared_among(profile) if forwards_trees(profile) else 0.0
    return None if not (among and tokens) else _share((1 - positions / tokens) / among)


def common_share_of_groups(trajectories: Sequence[Trajectory]) -> float | None:
    """The share c of a step's groups, however forwarded; None where each has one trajectory."""
    groups: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
    for one in trajectories:
        groups[one.group_id].append(tuple(one.token_ids))
    size = max(map(len, groups.values()), default=1)
    whole = [group for group in groups.values() if len(group) == size]
    tokens = sum(len(ids) for group in whole for ids in group)
    if size == 1 or not tokens:
        return None
    # neighbours in this order share the most, so each is compared with the one before it
    shared = sum(
        _common_prefix(one, other) for group in whole for one, other in pairwise(sorted(group))
    )
    return _share(shared / tokens / (1 - 1 / size))


def common_share_behind_prompts(
    trajectories: Sequence[Trajectory], episode_tokens: float
) -> float | None:
    """The share c of a policy that acts, from the prompts of one that does not yet.

    Args:
        trajectories: with prompts as they will be.
        episode_tokens: a trajectory as it is planned.
    """
    prompts = [one.turns[0].action_start for one in trajectories if one.turns]
    if not prompts or not episode_tokens:
        return None
    prompt = _share(fmean(prompts) / episode_tokens)
    return prompt + _COMMON_BEHIND_PROMPT * (1 - prompt)


def _shared_among(profile: Profile) -> float:
    """Share of what is common that is not forwarded again: 1 - 1 / n."""
    config = profile.training
    return max(0.0, 1 - config.minibatches / learned_per_group(config))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)
