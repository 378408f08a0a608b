"""Group reward-decoupled normalisation (GDPO; Liu et al. 2026, arXiv:2601.05242)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from espalier.algorithms.advantages.rules import OutcomeRule
from espalier.algorithms.advantages.segments import centre, group_std
from espalier.algorithms.batch import CreditBatch
from espalier.algorithms.masking import standardize

if TYPE_CHECKING:
    from torch import Tensor


class Gdpo(OutcomeRule):
    """Each term of the reward is normalised within its group, then the weighted sum in the batch.

    So a term with a wide range does not dominate. A trajectory without a term is left out of that
    term's statistics, and a term that no trajectory of a step has is left out of the step. This is
    TRL's `normalize_then_sum`; TRL's default is GRPO over the weighted sum.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reward_terms_BK"})
    name: Literal["gdpo"] = "gdpo"
    weights: Mapping[str, Annotated[float, Field(ge=0)]] = {}
    """Weights by the name of a term, such as {outcome = 1.0, format = 0.5}; other terms have weight
    1."""
    std_eps: float = Field(default=1e-4, gt=0)
    """Added to the deviation (ddof 1) of a group and to that of the batch, as in TRL."""

    def advantages_BT(self, outcomes_B: Tensor, batch: CreditBatch) -> Tensor:
        """Return [B, T], 0 outside the action mask; an outcome of NaN is missing.

        One number for every action token of a trajectory.
        """
        assert batch.reward_terms_BK is not None
        total_B = outcomes_B.new_zeros(outcomes_B.shape)
        terms = zip(batch.reward_names, batch.reward_terms_BK.unbind(dim=1), strict=True)
        for name, term_B in terms:
            weight = self.weights.get(name, 1.0)
            applies_B = ~term_B.isnan()
            groups_N, term_N = batch.groups_B[applies_B], term_B[applies_B]
            centred_N = centre(term_N, groups_N, group_of_one="zero")
            std_N = group_std(term_N, groups_N, ddof=1)
            total_B[applies_B] += weight * centred_N / (std_N + self.std_eps)
        return batch.spread(standardize(total_B, eps=self.std_eps))
