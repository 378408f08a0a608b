"""One algorithm of reinforcement learning: the rules that a profile combines.

Combinations of rules that cannot work are refused, with the reason, when a profile is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from espalier.algorithms.advantages import AdvantageRule
from espalier.algorithms.aggregation import Aggregation
from espalier.algorithms.batch import AlgorithmRule, LossBatch, PolicyLoss
from espalier.algorithms.filters import FilterRule, GroupFilter, TokenFilter
from espalier.algorithms.losses import LossRule
from espalier.algorithms.losses.value import CriticSettings
from espalier.algorithms.material import Everything, MaterialRule, PreferencePairs, Successes
from espalier.algorithms.off_policy import ImportanceWeights, OffPolicyRule, VTrace
from espalier.algorithms.presets import DEFAULT_PRESET, expand_preset
from espalier.algorithms.regularizers import KlPenalty, entropy_bonus

_SCORED_BEFORE = frozenset({"proximal_logprobs_BT", "sum_pi_squared_BT"})
"""Fields that the trainer must compute with the weights from before the update."""


class Algorithm(AlgorithmRule):
    """How a step's trajectories become a gradient; what is not set comes from the preset.

    [training.algorithm]
    preset = "gspo"
    loss.clip_high = 5e-4          # a parameter of the preset's own loss
    advantage = {name = "rloo"}    # replaces the preset's rule
    kl = "none"                    # removes a part of the preset
    """

    preset: str = DEFAULT_PRESET
    """Name of the combination that fills what is not set."""
    material: MaterialRule = Everything()
    advantage: AdvantageRule | None = None
    """None where the material itself decides what is good: successes, pairs."""
    loss: LossRule
    aggregation: Aggregation | None = None
    """None uses the loss's own aggregation if its formula fixes one, else `token_mean`."""
    kl: KlPenalty | None = None
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy in the loss."""
    off_policy: tuple[OffPolicyRule, ...] = ()
    filters: tuple[FilterRule, ...] = ()
    proximal: Literal["behavior", "recomputed"] = "behavior"
    """Log-probs in the denominator of the importance ratio: recorded by the engine, or recomputed
    by the trainer before the update (decoupled PPO, Hilton et al. 2021, arXiv:2110.00641)."""
    critic: CriticSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, values: Any) -> Any:  # noqa: ANN401 (whatever the profile holds)
        return expand_preset(values) if isinstance(values, dict) else values

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
    def credit_source(self) -> str:
        """The part that decides which trajectories were good, for error messages."""
        rule = self.advantage
        named = f'material "{self.material.name}"' if rule is None else f'advantage "{rule.name}"'
        return f'{named} (preset "{self.preset}")'

    @property
    def compares_groups(self) -> bool:
        """Whether advantages need several trajectories of one task, to compare them."""
        if isinstance(self.material, PreferencePairs):
            return True
        return self.advantage is not None and self.advantage.compares_groups

    @property
    def corrects_stale_data(self) -> bool:
        """Whether trajectories of an older policy version may be trained on."""
        imitates = isinstance(self.material, Successes)
        corrects = bool(self.off_policy) or isinstance(self.advantage, VTrace)
        return self.loss.has_ratio or imitates or corrects

    @property
    def needs(self) -> frozenset[str]:
        """Optional fields of `CreditBatch` and `LossBatch` that the rules read."""
        of_advantage = self.advantage.needs if self.advantage else frozenset[str]()
        of_kl = frozenset({"reference_logprobs_BT"} if self.kl else ())
        return of_advantage | self.loss.needs | of_kl

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the initial policy is needed."""
        return "reference_logprobs_BT" in self.needs

    @property
    def predicts_rewards(self) -> bool:
        """Whether advantages compare with the curriculum's prediction for a task."""
        return "expected_rewards_B" in self.needs

    @property
    def scores_before_update(self) -> bool:
        """Whether the trainer scores all rows of a step before its first update."""
        return (
            self.proximal == "recomputed"
            or bool(self.off_policy)
            or bool(self.token_filters)
            or bool(self.needs & _SCORED_BEFORE)
        )

    def objective(self, batch: LossBatch, *, kl_coefficient: float) -> PolicyLoss:
        """The micro-batch's share of the whole objective: loss, KL penalty, entropy bonus.

        Args:
            batch: one micro-batch.
            kl_coefficient: coefficient of a penalty in the loss; the trainer keeps an adaptive one.
        """
        mean = self.loss.fixed_aggregation or self.aggregation or "token_mean"
        terms = [self.loss.loss(batch, mean)]
        if self.entropy_coefficient:
            terms.append(entropy_bonus(batch, mean, coefficient=self.entropy_coefficient))
        if self.kl is not None and self.kl.place == "loss":
            terms.append(self.kl.loss(batch, mean, coefficient=kl_coefficient))
        metrics = {name: value for term in terms for name, value in term.metrics.items()}
        total = terms[0].loss
        for term in terms[1:]:
            total = total + term.loss
        return PolicyLoss(total, metrics)


_KNOWN_WHEN_SAMPLED = frozenset(
    {"turns_BT", "total_tokens_B", "reward_terms_BK", "baseline_rewards_B", "expected_rewards_B"}
)
"""Fields of a `CreditBatch` that are known before a model scores the rows."""


def refuse_impossible(algorithm: Algorithm) -> None:
    """Refuse an algorithm whose parts contradict each other.

    Raises:
        ValueError: lists every contradiction, with its reason and a remedy.
    """
    faults = [
        *_credit_faults(algorithm),
        *_material_faults(algorithm),
        *_loss_faults(algorithm),
        *_correction_faults(algorithm),
        *_filter_faults(algorithm),
    ]
    if faults:
        raise ValueError(f'with preset "{algorithm.preset}", {"; ".join(faults)}')


def _credit_faults(algorithm: Algorithm) -> Iterator[str]:
    advantage, critic = algorithm.advantage, algorithm.critic
    reads_values = advantage is not None and "values_BT" in advantage.needs
    if advantage is not None and reads_values and critic is None:
        yield (
            f'advantage "{advantage.name}" is measured against a critic and there is none: '
            'set critic = {}, or choose advantage = {name = "grpo"}, which compares groups'
        )
    if critic is not None and not reads_values:
        named = f'advantage "{advantage.name}"' if advantage else "this material"
        yield (
            f"{named} never reads a critic's values, which would be trained for nothing: "
            'set critic = "none", or choose advantage = {name = "gae"}'
        )


def _material_faults(algorithm: Algorithm) -> Iterator[str]:
    material, advantage, loss = algorithm.material, algorithm.advantage, algorithm.loss
    wants_pairs = "pairs_P2" in loss.needs
    judges = isinstance(material, PreferencePairs | Successes)
    if not judges and advantage is None:
        yield (
            f'material "{material.name}" does not say which trajectories were good, and there is '
            'no advantage: set one, such as {name = "grpo"}'
        )
    if judges and advantage is not None:
        yield (
            f'material "{material.name}" says itself what is good; advantage '
            f'"{advantage.name}" would never be read: set advantage = "none"'
        )
    if wants_pairs and not isinstance(material, PreferencePairs):
        yield (
            f'loss "{loss.name}" compares preference pairs and material "{material.name}" makes '
            'none: set material = {name = "pairs"}'
        )
    if isinstance(material, PreferencePairs) and not wants_pairs:
        yield f'loss "{loss.name}" does not compare pairs: set loss = {{name = "dpo"}}'
    if isinstance(material, Successes) and loss.has_ratio:
        yield (
            f'successes are imitated, whatever the ratio: loss "{loss.name}" would clip that; '
            'set loss = {name = "reinforce"}, the likelihood'
        )


def _loss_faults(algorithm: Algorithm) -> Iterator[str]:
    loss, kl = algorithm.loss, algorithm.kl
    fixed, asked = loss.fixed_aggregation, algorithm.aggregation
    if fixed is not None and asked not in (None, fixed):
        yield (
            f'the formula of loss "{loss.name}" is made of the mean "{fixed}"; '
            f'aggregation = "{asked}" has no meaning there: leave it out'
        )
    if kl is not None and kl.place == "reward" and algorithm.advantage is None:
        yield (
            "a penalty in the reward acts through advantages and there are none: set kl.place = "
            '"loss", or kl = "none"'
        )
    if kl is not None and kl.importance_corrected and kl.place == "reward":
        yield (
            "kl.importance_corrected acts on the policy that is being updated, which a penalty in "
            'the reward does not see: set kl.place = "loss", or leave it out'
        )
    if kl is not None and kl.importance_corrected and not loss.has_ratio:
        yield (
            f'loss "{loss.name}" has no importance ratio, so the penalty must not be corrected '
            "by one: set kl.importance_corrected = false"
        )


def _correction_faults(algorithm: Algorithm) -> Iterator[str]:
    loss, proximal = algorithm.loss, algorithm.proximal
    for rule in algorithm.off_policy:
        if not rule.gives_weights:
            continue
        if not loss.takes_weights:
            yield (
                f'loss "{loss.name}" corrects for the sampler itself; weights of off_policy '
                f'"{rule.name}" would count twice: take the rule out'
            )
        elif isinstance(rule, ImportanceWeights) and proximal == "behavior" and loss.has_ratio:
            yield (
                f'the ratio of loss "{loss.name}" to the behaviour policy is the correction that '
                f'off_policy "{rule.name}" would make a second time: set proximal = "recomputed"'
            )
        elif isinstance(algorithm.advantage, VTrace):
            yield (
                'advantage "v_trace" has the truncated ratio inside; weights of off_policy '
                f'"{rule.name}" would count it twice: take the rule out'
            )
    if algorithm.advantage is not None and proximal == "behavior":
        missing = algorithm.advantage.needs & {"proximal_logprobs_BT"}
        if missing:
            yield (
                f'advantage "{algorithm.advantage.name}" compares the sampler with the trainer: '
                'set proximal = "recomputed"'
            )


def _filter_faults(algorithm: Algorithm) -> Iterator[str]:
    advantage = algorithm.advantage
    computable = advantage is not None and advantage.needs <= _KNOWN_WHEN_SAMPLED
    for rule in algorithm.filters:
        if isinstance(rule, GroupFilter) and rule.reads == "advantages" and not computable:
            yield (
                f'filter "{rule.name}" judges groups by their advantages before anything is '
                f"scored by a model, and {algorithm.credit_source} needs that: choose a filter of "
                'rewards, such as {name = "zero_variance"}'
            )
