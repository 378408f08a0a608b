"""V-trace: values and advantages of a policy from another one's data.

Espeholt et al. 2018, arXiv:1802.01561, sec. 4.1. Axes: B trajectories, T token columns.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import kept
from espalier.algorithms.rule import Rule


class VTrace(Rule):
    """Critic targets corrected at every token, and the advantages that go with them (eq. 1).

    An advantage rule: the ratio proximal / behaviour is inside, truncated at `rho_bound`, so there
    are no importance weights beside it. Masked tokens are skipped, as in GAE: discount and trace
    pass over an observation as if it were not there.
    """

    needs: ClassVar[frozenset[str]] = frozenset(
        {"values_BT", "behavior_logprobs_BT", "proximal_logprobs_BT"}
    )
    name: Literal["v_trace"] = "v_trace"
    discount: float = Field(default=1.0, gt=0, le=1)
    """Per token."""
    rho_bound: float = Field(default=1.0, gt=0)
    """Which policy the values converge to: infinity is the trained one, 0 the sampler."""
    c_bound: float = Field(default=1.0, gt=0)
    """How fast: bounds the trace, not its fixed point."""
    trace_decay: float = Field(default=1.0, ge=0, le=1)
    """lambda of remark 2."""

    def credit(self, batch: CreditBatch) -> Credit:
        """See `Credit`; the advantage of a token bootstraps from the corrected next value."""
        assert batch.values_BT is not None
        assert batch.behavior_logprobs_BT is not None
        assert batch.proximal_logprobs_BT is not None
        mask_BT = batch.action_mask_BT
        rewards_BT, values_BT = kept(batch.rewards_BT, mask_BT), kept(batch.values_BT, mask_BT)
        log_ratio_BT = kept(batch.proximal_logprobs_BT - batch.behavior_logprobs_BT, mask_BT)
        ratio_BT = log_ratio_BT.exp()
        rho_BT = ratio_BT.clamp(max=self.rho_bound)
        trace_BT = self.trace_decay * ratio_BT.clamp(max=self.c_bound)
        targets_BT, advantages_BT = values_BT.clone(), values_BT.new_zeros(values_BT.shape)
        value_B = target_B = values_BT.new_zeros(len(values_BT))
        for t in reversed(range(values_BT.shape[1])):
            reward_B, rho_B, now_B = rewards_BT[:, t], rho_BT[:, t], values_BT[:, t]
            advantages_BT[:, t] = rho_B * (reward_B + self.discount * target_B - now_B)
            surprise_B = rho_B * (reward_B + self.discount * value_B - now_B)
            carried_B = self.discount * trace_BT[:, t] * (target_B - value_B)
            targets_BT[:, t] = now_B + surprise_B + carried_B
            here_B = mask_BT[:, t]
            target_B, value_B = (
                targets_BT[:, t].where(here_B, target_B),
                now_B.where(here_B, value_B),
            )
        return Credit(kept(advantages_BT, mask_BT), kept(targets_BT, mask_BT))
