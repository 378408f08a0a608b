"""What a policy loss declares, so that a profile can be refused before anything runs."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.rule import Rule

if TYPE_CHECKING:
    from espalier.algorithms.batch import LossBatch, PolicyLoss


class PolicyLossRule(Rule):
    """A rule with a `loss`; each sets what differs from these."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `LossBatch` that it reads."""
    whole_minibatch: ClassVar[bool] = False
    """Whether it compares tokens of the whole minibatch, so that this cannot be split."""
    fixed_aggregation: ClassVar[Aggregation | None] = None
    """The one aggregation that its formula is made of; None leaves the choice open."""
    takes_weights: ClassVar[bool] = True
    """Whether `importance_weights_BT` has a meaning beside the rule's own ratio."""

    @abstractmethod
    def loss(self, batch: LossBatch, aggregation: Aggregation) -> PolicyLoss:
        """This micro-batch's share of the minibatch's loss."""
