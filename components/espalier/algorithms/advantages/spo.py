"""SPO: rewards less what was predicted of the task without them (arXiv:2509.13232)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import group_size, group_sum
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import standardize

if TYPE_CHECKING:
    from torch import Tensor

_STD_EPS = 1e-6


class Spo(OutcomeRule):
    """Reward less its expectation, standardised over the batch.

    Single-stream policy optimization (arXiv:2509.13232, sec. 3): a group needs no siblings, so that
    a step's rollouts are spread over more tasks. The paper tracks each prompt's pass rate from
    epoch to epoch; here it is that of `PassRatePredictor`, which knows tasks that were never tried,
    too. Where a group has siblings, their rewards count beside the prediction, each as much as one
    of its `prediction_weight` attempts. A step of equal rewards gives no credit: standardised, the
    error of its predictions would be as large as any surprise.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"expected_rewards_B"})
    name: Literal["spo"] = "spo"
    prediction_weight: float = Field(default=3.0, gt=0)
    """Attempts that a prediction is worth, beside the siblings of a trajectory."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """See `OutcomeRule`: one number for every action token of a trajectory."""
        assert batch.expected_rewards_B is not None
        groups_B = batch.groups_B
        siblings_B = group_size(groups_B) - 1
        of_siblings_B = group_sum(outcomes_B, groups_B) - outcomes_B
        weight = self.prediction_weight
        known_B = weight * batch.expected_rewards_B + of_siblings_B
        expected_B = known_B / (weight + siblings_B)
        above_B = standardize(outcomes_B - expected_B, eps=_STD_EPS)
        return batch.spread(above_B * bool(outcomes_B.max() > outcomes_B.min()))
