"""A step's trajectories as dense rows, with every quantity in the column of its token.

Axes: B trajectories, T token columns (the longest trajectory), K terms of the reward. See
`espalier.algorithms.batch` for a worked instance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.records.trajectory import TURNS_TERM, Trajectory
from espalier.training.packing import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The trajectories of one task; one whose environment was lost has left it already."""

    trajectories: tuple[Trajectory, ...]
    baseline_reward: float | None = None
    """Reward of the greedy trajectory, where the advantages need one (ReMax)."""
    is_silenced: bool = False
    """Whether it counts in the loss's normaliser alone: a filter took its credit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What sampling left, in the order of the groups; no weights have touched it yet."""

    sequences: tuple[TrainingSequence, ...]
    """Their loss mask is `loss_mask_BT`, less the first token, which nothing predicts."""
    groups_B: Tensor
    versions_B: Tensor
    """Int64: version of the policy that sampled the trajectory."""
    total_tokens_B: Tensor
    rewards_BT: Tensor
    """Where each reward fell: a turn's on the last token of its action, the rest on the last."""
    reward_terms_BK: Tensor
    """The named terms in the order of `reward_names`; NaN where a trajectory lacks one."""
    reward_names: tuple[str, ...]
    action_mask_BT: Tensor
    loss_mask_BT: Tensor
    """The action mask; in the ablation all that follows the prompt."""
    observed_BT: Tensor
    """Bool, from the spans of the turns: what the environment said. It must stay out of the loss,
    and is told by other means than the mask, so that one can be checked by the other."""
    turns_BT: Tensor
    behavior_logprobs_BT: Tensor
    """Nats; NaN on loss tokens that no engine sampled."""
    baseline_rewards_B: Tensor | None
    silenced_B: Tensor
    """Bool, see `Group`."""

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def width(self) -> int:
        """Token columns."""
        return self.action_mask_BT.shape[1]


def dense_rows(groups: Sequence[Group], *, with_observations: bool) -> Rows:
    """Lay out the trajectories of `groups`.

    Args:
        groups: at least one trajectory in all.
        with_observations: the ablation that leaves the tool's tokens in the loss, as a trainer
            without an action mask does.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    width = max(len(t.token_ids) for t in trajectories)
    action_BT = _padded([t.action_mask for t in trajectories], width, torch.bool)
    behavior_BT = _padded([t.behavior_logprobs for t in trajectories], width, torch.float32)
    turns_BT, observed_BT = _turns(trajectories, width)
    loss_BT = action_BT
    if with_observations:
        lengths_B = torch.tensor([len(t.token_ids) for t in trajectories])
        inside_BT = torch.arange(width) < lengths_B[:, None]
        loss_BT = (action_BT.cumsum(dim=1) > 0) & inside_BT
    names = tuple(sorted({name for t in trajectories for name in t.reward}))
    terms = [[t.reward.get(name, math.nan) for name in names] for t in trajectories]
    baselines = [group.baseline_reward for group in groups for _ in group.trajectories]
    known = [value for value in baselines if value is not None]
    sizes = torch.tensor([len(group.trajectories) for group in groups])
    return Rows(
        sequences=tuple(
            TrainingSequence(
                token_ids=t.token_ids,
                loss_mask=tuple(mask[: len(t.token_ids)]),
                window_starts=t.window_starts,
            )
            for t, mask in zip(trajectories, loss_BT.int().tolist(), strict=True)
        ),
        groups_B=torch.arange(len(groups)).repeat_interleave(sizes),
        versions_B=torch.tensor([t.policy_version for t in trajectories]),
        total_tokens_B=torch.tensor([len(t.token_ids) for t in trajectories]),
        rewards_BT=_rewards(trajectories, action_BT),
        reward_terms_BK=torch.tensor(terms),
        reward_names=names,
        action_mask_BT=action_BT,
        loss_mask_BT=loss_BT,
        observed_BT=observed_BT,
        turns_BT=turns_BT,
        behavior_logprobs_BT=behavior_BT.masked_fill(~action_BT, 0.0).masked_fill(
            loss_BT & ~action_BT, math.nan
        ),
        baseline_rewards_B=torch.tensor(known) if len(known) == len(baselines) else None,
        silenced_B=torch.tensor([group.is_silenced for group in groups]).repeat_interleave(sizes),
    )


def _padded(values: Sequence[Sequence[float]], width: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in values], dtype=dtype)


def _turns(trajectories: Sequence[Trajectory], width: int) -> tuple[Tensor, Tensor]:
    """Turn numbers of the action tokens (-1 elsewhere), and which tokens are observations."""
    turns_BT = torch.full((len(trajectories), width), -1)
    observed_BT = torch.zeros(len(trajectories), width, dtype=torch.bool)
    for row, trajectory in enumerate(trajectories):
        for number, turn in enumerate(trajectory.turns):
            turns_BT[row, turn.action_start : turn.action_end] = number
            observed_BT[row, turn.action_end : turn.observation_end] = True
    return turns_BT, observed_BT


def _rewards(trajectories: Sequence[Trajectory], action_BT: Tensor) -> Tensor:
    rewards_BT = torch.zeros(action_BT.shape)
    columns_T = torch.arange(action_BT.shape[1])
    last_B = (columns_T * action_BT).amax(dim=1)
    for row, trajectory in enumerate(trajectories):
        # a trajectory that never acted has no token to be paid at
        if bool(action_BT[row].any()):
            by_turn = trajectory.reward.get(TURNS_TERM, 0.0)
            rewards_BT[row, last_B[row]] = trajectory.total_reward - by_turn
            for turn in trajectory.turns:
                rewards_BT[row, turn.action_end - 1] += turn.reward
    return rewards_BT
