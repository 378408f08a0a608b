"""V-trace: values and advantages of a policy from another policy's data.

Espeholt et al. 2018, arXiv:1802.01561, sec. 4.1. Axes: B trajectories, T token columns.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.batch import Credit, CreditBatch, CreditRule
from espalier.algorithms.masking import discounted_to_go, kept, next_values


class VTrace(CreditRule):
    """Critic targets corrected at every token, and the advantages that go with them (eq. 1).

    An advantage rule. It includes the ratio proximal / behaviour, truncated at `rho_bound`, so
    importance weights are not used with it. Masked tokens are skipped, as in GAE, without discount.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"values_BT", "behavior_logprobs_BT", "proximal_logprobs_BT"}
    )
    compares_groups: ClassVar[bool] = False
    name: Literal["v_trace"] = "v_trace"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per token."""
    rho_bound: float = Field(default=1.0, gt=0)
    """Determines to which policy the values converge: infinity is the trained one, 0 the
    sampler."""
    c_bound: float = Field(default=1.0, gt=0)
    """Bounds the trace: changes the speed of convergence, not the fixed point."""
    trace_lambda: float = Field(default=1.0, ge=0, le=1)
    """Decay of the trace (remark 2)."""

    def credit(self, batch: CreditBatch) -> Credit:
        """Return the advantages, which bootstrap from the corrected next value, and the returns."""
        assert batch.values_BT is not None
        assert batch.behavior_logprobs_BT is not None
        assert batch.proximal_logprobs_BT is not None
        mask_BT = batch.action_mask_BT
        rewards_BT, values_BT = kept(batch.rewards_BT, mask_BT), kept(batch.values_BT, mask_BT)
        log_ratio_BT = kept(batch.proximal_logprobs_BT - batch.behavior_logprobs_BT, mask_BT)
        ratio_BT = log_ratio_BT.exp()
        rho_BT = ratio_BT.clamp(max=self.rho_bound)
        trace_BT = self.trace_lambda * ratio_BT.clamp(max=self.c_bound)
        following_BT = next_values(values_BT, mask_BT)
        deltas_BT = rho_BT * (rewards_BT + self.gamma * following_BT - values_BT)
        corrections_BT = discounted_to_go(deltas_BT, mask_BT, self.gamma * trace_BT)
        targets_BT = values_BT + corrections_BT
        bootstrapped_BT = rewards_BT + self.gamma * next_values(targets_BT, mask_BT)
        return Credit(kept(rho_BT * (bootstrapped_BT - values_BT), mask_BT), targets_BT)
