"""Base classes of the filters: of groups, of groups ranked by their rewards, and of tokens.

The ranking rules come from StarPO-S (arXiv:2504.20073, sec. 3.2): the more the rewards of a task
differ, the more uncertain the policy is about it, and the more it can learn. The rules differ in
where they cut the ranking; all follow RAGEN's `RewardRolloutFilter`, which ranks the earlier of
equal groups first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from espalier.algorithms.batch import AlgorithmRule

if TYPE_CHECKING:
    from torch import Tensor


class Selection(NamedTuple):
    """Groups, as indices into the argument of `select`."""

    kept: tuple[int, ...]
    """Groups that train, in the order of the rule."""
    silenced: frozenset[int] = frozenset()
    """Kept groups whose advantages are set to 0: they count only in the loss's normaliser."""


class GroupFilter(AlgorithmRule):
    """Selects groups; the groups may be ragged."""

    @property
    def reads(self) -> Literal["rewards", "outcomes", "advantages"]:
        """The numbers that `select` gets; outcomes are rewards without any other term."""
        return "rewards"

    @property
    def regenerations(self) -> int:
        """How often the sampler may draw other tasks to replace dropped groups."""
        return 0

    @abstractmethod
    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Return the groups that train.

        Args:
            groups: for each group one number per trajectory that could be scored.
        """


ZERO = 1e-10
"""Scores up to this bound count as 0, as upstream."""


class RankedGroups(GroupFilter):
    """Scores the groups, ranks them, and keeps one end of the ranking."""

    score: Literal["std", "mean"] = "std"
    """Statistic of a group's rewards; "std" (ddof 1) is RAGEN's reward variance."""
    keep: Literal["largest", "smallest"] = "largest"
    """Whether the groups with the largest or with the smallest scores are kept."""
    include_zero: bool = True
    """Whether groups of score 0 may be kept."""

    @abstractmethod
    def cut(self, scores: Mapping[int, float], num_groups: int) -> Sequence[int]:
        """Return the groups to keep, in order.

        Args:
            scores: score of each group that may be kept.
            num_groups: number of all groups.
        """

    def select(self, groups: Sequence[Sequence[float]]) -> Selection:
        """Return the numbers of the groups that train, in the order of `ranked`.

        Groups without a scored attempt are left out, and those of score 0 unless `include_zero`.
        """
        scores = {p: self.score_of(group) for p, group in enumerate(groups) if group}
        if not self.include_zero:
            scores = {p: score for p, score in scores.items() if abs(score) > ZERO}
        return Selection(tuple(self.cut(scores, len(groups))) if scores else ())

    def ranked(self, scores: Mapping[int, float]) -> list[int]:
        """Return the groups in the order in which they are kept."""
        return sorted(scores, key=lambda p: scores[p], reverse=self.keep == "largest")

    def score_of(self, rewards: Sequence[float]) -> float:
        """Return the score of a group."""
        if self.score == "mean":
            return fmean(rewards)
        # exactly 0 for equal rewards, whose float mean may differ from them in the last bit
        return stdev(rewards) if min(rewards) < max(rewards) else 0.0


class TokenFilter(AlgorithmRule):
    """Removes tokens from the loss mask, and never adds any."""

    whole_minibatch: ClassVar[bool] = True
    """Whether tokens are compared with each other, so that micro-batches change the result."""

    @abstractmethod
    def masked(self, loss_mask_BT: Tensor, entropy_BT: Tensor) -> Tensor:
        """Return [B, T] bool: the rest of the mask.

        Args:
            loss_mask_BT: [B, T] bool.
            entropy_BT: [B, T] entropy of each token's distribution under the policy, nats.
        """
