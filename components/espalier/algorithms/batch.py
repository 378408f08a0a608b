"""The data of the rules: trajectories as dense rows, every quantity in the column of its token.

Axes: B trajectories, T token columns. One trajectory of two turns and one tool call, where P is the
prompt, O an observation, A sampled by the policy and . padding:

    tokens             P P P A A O O A .
    action_mask        0 0 0 1 1 0 0 1 0
    turns             -1-1-1 0 0-1-1 1-1
    rewards            0 0 0 0 0 0 0 r 0      an outcome is on the last action token
    behavior_logprobs  0 0 0 a b 0 0 c 0      nats

A rule reads nothing in a column whose mask is 0, unless it is named after an upstream that does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

from espalier.algorithms.masking import kept

if TYPE_CHECKING:
    from torch import Tensor


class AlgorithmRule(BaseModel):
    """Parameters and formula of one rule; `name` selects it in the profile.

    A frozen pydantic model whose fields are parameters and whose one method is the formula: parsing
    a profile yields the object that runs. Rules do not import torch, so that a profile loads
    without it; they use the methods of the tensors that they are given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditBatch:
    """All admitted trajectories of a step, as the advantage rules see them."""

    rewards_BT: Tensor
    """Float, including KL penalties in the reward. NaN: the trajectory could not be scored; rules
    of outcomes leave it out, others must not get it."""
    action_mask_BT: Tensor
    """Bool."""
    groups_B: Tensor
    """Int64 group number; groups may be ragged and in any order."""
    turns_BT: Tensor | None = None
    """Int64 turn number on action tokens, -1 elsewhere."""
    values_BT: Tensor | None = None
    """A critic's value before each token."""
    baseline_rewards_B: Tensor | None = None
    """ReMax: reward of the greedy trajectory of the same task."""
    expected_rewards_B: Tensor | None = None
    """SPO: outcome that was predicted for the task without this group, reward units."""
    behavior_logprobs_BT: Tensor | None = None
    """Log-probs of the sampled tokens under the policy that sampled them, nats."""
    reference_logprobs_BT: Tensor | None = None
    """Log-probs under the frozen model of the KL term, nats."""
    proximal_logprobs_BT: Tensor | None = None
    """Log-probs under the weights that the update starts from, for V-trace; nats."""
    sum_pi_squared_BT: Tensor | None = None
    """Sum over the vocabulary of squared probabilities, for the optimal token baseline."""
    total_tokens_B: Tensor | None = None
    """Tokens of the whole trajectory, prompt and observations included."""
    reward_terms_BK: Tensor | None = None
    """The K named terms that make up each outcome, unweighted; NaN where a term does not apply."""
    reward_names: tuple[str, ...] = ()
    """Their names, in the order of the columns."""

    @property
    def outcomes_B(self) -> Tensor:
        """[B] reward of each trajectory: the sum over its action tokens."""
        return kept(self.rewards_BT, self.action_mask_BT).sum(dim=1)

    def rows(self, chosen: Tensor) -> CreditBatch:
        """Return the batch of some trajectories: their row numbers, or a bool for every row."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        names = present.pop("reward_names")
        rows = {name: value[chosen] for name, value in present.items() if value is not None}
        return replace(self, reward_names=names, **rows)

    def spread(self, advantages_B: Tensor) -> Tensor:
        """Return [B, T]: one number for every action token of a trajectory, 0 elsewhere."""
        return advantages_B[:, None] * self.action_mask_BT


class Credit(NamedTuple):
    """Advantages and returns; both [B, T], and 0 where the action mask is 0."""

    advantages_BT: Tensor
    returns_BT: Tensor
    """Targets of a critic."""


class CreditRule(AlgorithmRule):
    """Base of the advantage rules."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `CreditBatch` that it reads."""
    compares_groups: ClassVar[bool] = True
    """Whether credit comes from differences between the attempts at one task."""

    @abstractmethod
    def credit(self, batch: CreditBatch) -> Credit:
        """Return the advantages and the returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sizes of the whole minibatch, by which the losses of its micro-batches add up."""

    tokens: float
    """Number of tokens in the loss."""
    sequences: float
    """Number of trajectories with at least one token in the loss."""
    rows: float
    """Number of all trajectories."""
    max_tokens: float
    """Normaliser of Dr. GRPO: the longest possible action sequence."""
    pairs: float = 0.0
    """Number of preference pairs, for DPO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBatch:
    """A micro-batch, as the losses see it."""

    policy_logprobs_BT: Tensor
    """Log-probs under the weights being trained, with gradient, nats."""
    proximal_logprobs_BT: Tensor
    """Denominator of the importance ratio: behaviour log-probs, or recomputed by the trainer."""
    advantages_BT: Tensor
    loss_mask_BT: Tensor
    """Bool: the action mask without the tokens that filters and corrections dropped."""
    totals: Totals
    behavior_logprobs_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None
    importance_weights_BT: Tensor | None = None
    """Off-policy correction, no gradient; multiplies the loss of a token. None means 1."""
    entropy_BT: Tensor | None = None
    """Entropy of each token's distribution, nats."""
    draws_BT: Tensor | None = None
    """Uniform numbers in [0, 1), for rules that choose tokens at random."""
    pairs_P2: Tensor | None = None
    """DPO: rows (chosen, rejected) of each preference pair."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A scalar to minimise, and figures about it that the rule describes."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Named sums over the micro-batch, each already divided by its minibatch total. Over a step's
    minibatches they are averaged by the denominator that `STEP_FIGURES` names, else equally."""
