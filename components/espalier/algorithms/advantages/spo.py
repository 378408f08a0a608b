"""SPO: rewards minus what was predicted for the task without them (arXiv:2509.13232)."""

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
    """Reward minus its expectation, standardised over the batch.

    Single-stream policy optimization (arXiv:2509.13232, sec. 3): a group needs no siblings, so that
    a step's rollouts are spread over more tasks. The paper tracks each prompt's pass rate from
    epoch to epoch; here it comes from `PassRatePredictor`, which also predicts tasks that were
    never tried. In a group, the siblings' rewards are averaged with the prediction, which weighs
    as much as `prediction_weight` attempts. A step of equal rewards gives no credit, as
    standardising would amplify the errors of its predictions.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"expected_rewards_B"})
    compares_groups: ClassVar[bool] = False
    name: Literal["spo"] = "spo"
    prediction_weight: float = Field(default=3.0, gt=0)
    """Number of attempts that a prediction weighs, beside the siblings of a trajectory."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        assert batch.expected_rewards_B is not None
        groups_B = batch.groups_B
        siblings_B = group_size(groups_B) - 1
        of_siblings_B = group_sum(outcomes_B, groups_B) - outcomes_B
        weight = self.prediction_weight
        known_B = weight * batch.expected_rewards_B + of_siblings_B
        expected_B = known_B / (weight + siblings_B)
        above_B = standardize(outcomes_B - expected_B, eps=_STD_EPS)
        return batch.spread(above_B * bool(outcomes_B.max() > outcomes_B.min()))
