"""One algorithm of reinforcement learning: the rules that a profile combines."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.advantages import AdvantageRule, ReinforcePlusPlus, ReMax
from espalier.algorithms.advantages.critic import CriticRule
from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.batch import LossBatch, PolicyLoss
from espalier.algorithms.combinations import refuse_impossible
from espalier.algorithms.critic import CriticSettings
from espalier.algorithms.entropy import entropy_bonus
from espalier.algorithms.filters import FilterRule, GroupFilter, TokenFilter
from espalier.algorithms.kl import KlPenalty
from espalier.algorithms.losses import LossRule, Reinforce
from espalier.algorithms.material import Everything, MaterialRule, PreferencePairs, Successes
from espalier.algorithms.off_policy import OffPolicyRule, VTrace
from espalier.algorithms.presets import DEFAULT_PRESET, expanded
from espalier.algorithms.rule import Rule

_SCORED_BEFORE = frozenset({"proximal_logprobs_BT", "sum_pi_squared_BT"})
"""Fields that the trainer must compute with the weights that an update starts from."""


class Algorithm(Rule):
    """How a step's trajectories become a gradient; what is not set comes from the preset.

    [training.algorithm]
    preset = "gspo"
    loss.clip_high = 5e-4          # a parameter of the preset's own loss
    advantage = {name = "rloo"}    # another rule altogether
    kl = "none"                    # a part that the preset has, left out
    """

    preset: str = DEFAULT_PRESET
    """Name of the combination that fills what is not set."""
    material: MaterialRule = Everything()
    advantage: AdvantageRule | None = None
    """None where the material says already what is good."""
    loss: LossRule
    aggregation: Aggregation | None = None
    """None is the mean that the loss is made of, or `token_mean`."""
    kl: KlPenalty | None = None
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in the loss."""
    off_policy: tuple[OffPolicyRule, ...] = ()
    filters: tuple[FilterRule, ...] = ()
    proximal: Literal["behavior", "recomputed"] = "behavior"
    """Denominator of the importance ratio: log-probs that the engine recorded, or those that the
    trainer computes before the update (decoupled PPO, Hilton et al. 2021, arXiv:2110.00641)."""
    critic: CriticSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, values: Any) -> Any:  # noqa: ANN401 (whatever the profile holds)
        return expanded(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        refuse_impossible(self)
        return self

    @property
    def group_filters(self) -> list[GroupFilter]:
        """Filters that choose groups, in the order of the profile."""
        return [rule for rule in self.filters if isinstance(rule, GroupFilter)]

    @property
    def token_filters(self) -> list[TokenFilter]:
        """Filters that narrow the loss mask, in the order of the profile."""
        return [rule for rule in self.filters if isinstance(rule, TokenFilter)]

    @property
    def compares_groups(self) -> bool:
        """Whether credit comes from the differences between trajectories of one task."""
        if isinstance(self.material, PreferencePairs):
            return True
        alone = (CriticRule, VTrace, ReinforcePlusPlus, ReMax)
        return self.advantage is not None and not isinstance(self.advantage, alone)

    @property
    def corrects_stale_data(self) -> bool:
        """Whether trajectories of a former policy may be learned from."""
        has_ratio = not isinstance(self.loss, Reinforce)
        imitates = isinstance(self.material, Successes)
        return has_ratio or imitates or bool(self.off_policy) or isinstance(self.advantage, VTrace)

    @property
    def needs(self) -> frozenset[str]:
        """Optional fields of `CreditBatch` and `LossBatch` that its rules read."""
        of_advantage = self.advantage.needs if self.advantage else frozenset[str]()
        of_kl = frozenset({"reference_logprobs_BT"} if self.kl else ())
        return of_advantage | self.loss.needs | of_kl

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the first policy is scored as well."""
        return "reference_logprobs_BT" in self.needs

    @property
    def scores_before_update(self) -> bool:
        """Whether the trainer scores a step's rows once before it changes any weight."""
        return (
            self.proximal == "recomputed"
            or bool(self.off_policy)
            or bool(self.token_filters)
            or bool(self.needs & _SCORED_BEFORE)
        )

    def objective(self, batch: LossBatch, *, kl_coefficient: float) -> PolicyLoss:
        """The micro-batch's share of all that is minimised: loss, KL penalty, entropy bonus.

        Args:
            batch: one micro-batch.
            kl_coefficient: of a penalty in the loss; an adaptive one is kept by whoever trains.
        """
        mean = self.loss.fixed_aggregation or self.aggregation or "token_mean"
        terms = [self.loss.loss(batch, mean), self._bonus(batch, mean)]
        if self.kl is not None and self.kl.place == "loss":
            terms.append(self.kl.loss(batch, mean, coefficient=kl_coefficient))
        metrics = {name: value for term in terms for name, value in term.metrics.items()}
        total = terms[0].loss
        for term in terms[1:]:
            total = total + term.loss
        return PolicyLoss(total, metrics)

    def _bonus(self, batch: LossBatch, mean: Aggregation) -> PolicyLoss:
        # without a coefficient it still measures the entropy, which every history shows
        return entropy_bonus(batch, mean, coefficient=self.entropy_coefficient)
