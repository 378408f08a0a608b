"""What off-policy rules see and return: the sampler's log-probs beside the trainer's.

The sampler is never quite the policy that is trained: its kernels round otherwise, its weights may
be older. Axes: B trajectories, T token columns. Log-probs in nats, without gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from espalier.algorithms.masking import kept
from espalier.algorithms.rule import Rule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionBatch:
    """Trajectories whose tokens are to be weighed or dropped."""

    trainer_logprobs_BT: Tensor
    """Recomputed before the update (proximal), or those of the policy itself (verl's bypass)."""
    behavior_logprobs_BT: Tensor
    """Of the policy that sampled; NaN where it is not known, which counts as no difference."""
    action_mask_BT: Tensor
    """Bool."""
    advantages_BT: Tensor | None = None

    @property
    def known_BT(self) -> Tensor:
        """[B, T] bool: tokens of the mask that have a behaviour log-prob."""
        return self.action_mask_BT & ~self.behavior_logprobs_BT.isnan()

    @property
    def log_ratio_BT(self) -> Tensor:
        """[B, T] trainer less behaviour log-prob; 0 where masked and where unknown."""
        log_ratio_BT = self.trainer_logprobs_BT - self.behavior_logprobs_BT
        return kept(log_ratio_BT.detach(), self.known_BT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What a rule makes of a batch."""

    weights_BT: Tensor | None = None
    """Multiply the loss of a token and leave its place in every mean; None means 1."""
    mask_BT: Tensor
    """Bool; tokens dropped from it leave the means as well."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Scalars over the whole batch."""


class CorrectionRule(Rule):
    """A rule with a `correct`."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `CorrectionBatch` that it reads."""
    gives_weights: ClassVar[bool] = True
    """Whether it makes weights, which the loss has to take; a rule without them makes a mask."""

    @abstractmethod
    def correct(self, batch: CorrectionBatch) -> Correction:
        """Weights and mask for the batch's tokens."""


def correct(rules: Sequence[CorrectionRule], batch: CorrectionBatch) -> Correction:
    """All rules on the same batch: weights multiply, a token that one of them drops is dropped.

    Each sees the batch as it was, so that their order does not matter: weights are normalised over
    tokens that a rejection drops, as in verl.
    """
    weights_BT, mask_BT = None, batch.action_mask_BT
    metrics: dict[str, Tensor] = {}
    for rule in rules:
        found = rule.correct(batch)
        mask_BT = mask_BT & found.mask_BT
        if found.weights_BT is not None:
            weights_BT = found.weights_BT if weights_BT is None else weights_BT * found.weights_BT
        metrics |= found.metrics
    return Correction(weights_BT=weights_BT, mask_BT=mask_BT, metrics=metrics)
