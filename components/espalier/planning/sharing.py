"""How many positions an update forwards for each token, where trajectories begin alike.

All prompts of a family begin with the same preamble, its instructions and tools: the share p of a
trajectory. Of what follows, the share c is also in others of its group: the question, and turns
that the policy often takes. A minibatch forwards the preamble once and what is common of a group
once, so for each token about

    (1 - p) (1 - c + c m (1 - (1 - 1/m)^n) / n)    positions

where n trajectories of a group are learned from and each falls into one of m minibatches.

In 17 runs of code, customer_service, function_calling, tiny, mixture, shop and sql, c of the last
step's groups was 0.53 to 0.95 (median 0.87), and within 0.05 the same for halves of the groups. The
policy made from scratch has no preamble.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from statistics import fmean
from typing import NamedTuple

from espalier.config import Profile, named_reference
from espalier.records.trajectory import Trajectory

COMMON_SHARE = 0.8
"""The share c where no probe has measured it: a quarter of those runs had less."""
PREAMBLE_SHARE = 0.4
"""The share p assumed for a given model until a probe measures it. SmolLM2 has about as much on
GeoNames questions."""
_COMMON_BEHIND_PROMPT = 0.7
"""Assumed share of c behind the prompt; c was then within 0.13 of those runs' median."""


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


class Sharing(NamedTuple):
    """What trajectories have in common, as shares 0-1."""

    preamble: float
    """The share p of the module's formula: tokens that every prompt begins with."""
    group: float
    """The share c of the module's formula: of the other tokens, those that further trajectories of
    the same group have too."""


def positions_per_token(profile: Profile, sharing: Sharing) -> float:
    """Positions that the update forwards for each token of its trajectories; 1 if packed."""
    if not forwards_trees(profile):
        return 1.0
    return (1 - sharing.preamble) * (1 - sharing.group * _shared_among(profile))


def preamble_tokens(trajectories: Sequence[Trajectory]) -> int:
    """How many tokens the prompts of all tasks begin with alike; 0 of a single task."""
    of_task = {one.group_id: tuple(one.token_ids) for one in trajectories}
    if len(of_task) == 1:
        return 0
    return _common_prefix(min(of_task.values(), default=()), max(of_task.values(), default=()))


def sharing_behind_prompts(
    trajectories: Sequence[Trajectory], episode_tokens: float
) -> Sharing | None:
    """What a policy that acts will have in common, from the prompts of one that does not yet.

    Args:
        trajectories: with prompts as they will be.
        episode_tokens: a trajectory as it is planned.
    """
    prompts = [one.turns[0].action_start for one in trajectories if one.turns]
    if not prompts or not episode_tokens:
        return None
    preamble = _share(preamble_tokens(trajectories) / episode_tokens)
    prompt = _share(fmean(prompts) / episode_tokens)
    behind = _COMMON_BEHIND_PROMPT * (1 - prompt)
    rest = 1 - preamble
    return Sharing(preamble, _share((prompt - preamble + behind) / rest) if rest else 1.0)


def _shared_among(profile: Profile) -> float:
    """Share of what is common to a group that is not forwarded again."""
    count, learned = profile.training.minibatches, profile.training.group_size
    with_some = count * (1 - (1 - 1 / count) ** learned)
    return 1 - with_some / learned


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)
