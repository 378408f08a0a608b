"""Scores, advantages and corrections of a step's rows, under the weights before the update.

    rows -> proximal, reference and critic's scores -> rewards -> advantages -> corrections

`engine_mismatch` compares the trainer's scores with the engine's on every step. They differ by the
rounding of two implementations. A larger difference is a fault: weights that were not published, a
temperature or truncation that only one side applies, tokens that were not sampled.

Axes: B trajectories, T token columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import Credit, CreditBatch
from espalier.algorithms.masking import masked_mean
from espalier.algorithms.off_policy import Correction, CorrectionBatch, correct, mismatch_metrics
from espalier.dialects.detection import BROKEN
from espalier.records.step_figures import UNKNOWN_TOOL, UNREAD_CALLS
from espalier.rollout.engines.engine import KindChoice
from espalier.training.rl.models import Layout, Models, dense_scores
from espalier.training.rl.rows import Rows
from espalier.training.scoring import ScoreRequest, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The update's inputs besides the rows; [B, T] on the CPU, 0 outside the loss mask."""

    credit: Credit
    loss_mask_BT: Tensor
    """The rows' loss mask without the tokens that corrections and token filters dropped."""
    proximal_logprobs_BT: Tensor
    """NaN where neither engine nor trainer has scored the token: its ratio is 1."""
    trainer_logprobs_BT: Tensor | None = None
    """Log-probs under the weights before the update, where the algorithm needs them."""
    entropies_BT: Tensor | None = None
    """Of the distribution before each token, where the algorithm needs `trainer_logprobs_BT`."""
    reference_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    weights_BT: Tensor | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


class _Scores(NamedTuple):
    """Scores of shape [B, T]; None where the algorithm does not need them."""

    trainer_BT: Tensor | None
    entropy_BT: Tensor | None
    sum_pi_squared_BT: Tensor | None
    reference_BT: Tensor | None
    values_BT: Tensor | None


class Assessor:
    """Scores rows with the models' current weights, and computes advantages."""

    def __init__(self, models: Models, algorithm: Algorithm, layout: Layout) -> None:
        self._models = models
        self._algorithm = algorithm
        self._layout = layout

    def assess(self, rows: Rows, request: ScoreRequest, *, kl_coefficient: float) -> Assessment:
        """Compute scores, rewards, advantages and corrections, in this order.

        Args:
            rows: rows of one step.
            request: the distribution that they were sampled from.
            kl_coefficient: coefficient of a KL penalty in the reward, reward units per nat.
        """
        scores = self._scores(rows, request)
        proximal_BT = rows.behavior_logprobs_BT
        if self._algorithm.proximal == "recomputed":
            proximal_BT = _present(scores.trainer_BT)
        rewards_BT, figures = self._rewards(rows, proximal_BT, scores, kl_coefficient)
        credit = self._credit(rows, rewards_BT, proximal_BT, scores)
        correction = Correction(mask_BT=rows.loss_mask_BT)
        if self._algorithm.off_policy:
            correction = correct(
                self._algorithm.off_policy,
                CorrectionBatch(
                    trainer_logprobs_BT=_present(scores.trainer_BT),
                    behavior_logprobs_BT=rows.behavior_logprobs_BT,
                    action_mask_BT=rows.loss_mask_BT,
                    advantages_BT=credit.advantages_BT,
                ),
            )
        figures |= {name: float(value) for name, value in correction.metrics.items()}
        figures |= _explained_variance(rows)
        loss_mask_BT = correction.mask_BT
        for rule in self._algorithm.token_filters:
            loss_mask_BT = rule.masked(loss_mask_BT, _present(scores.entropy_BT))
        return Assessment(
            credit=credit,
            loss_mask_BT=loss_mask_BT,
            proximal_logprobs_BT=proximal_BT,
            trainer_logprobs_BT=scores.trainer_BT,
            entropies_BT=scores.entropy_BT,
            reference_logprobs_BT=scores.reference_BT,
            values_BT=scores.values_BT,
            weights_BT=correction.weights_BT,
            figures=figures,
        )

    def _scores(self, rows: Rows, request: ScoreRequest) -> _Scores:
        models, algorithm, sequences = self._models, self._algorithm, rows.sequences
        trainer_BT = entropy_BT = squared_BT = reference_BT = values_BT = None
        if algorithm.scores_before_update:
            asked = replace(request, entropy=True, sum_pi_squared=True)
            trainer_BT, entropy_BT, squared_BT = dense_scores(
                sequences, lambda batch: _all_of(models.policy(batch, asked)), self._layout,
                figures=3,
            )  # fmt: skip
        if (reference := models.reference) is not None:
            asked_of_reference = replace(request, entropy=False, sum_pi_squared=False)
            [reference_BT] = dense_scores(
                sequences,
                lambda batch: [reference(batch, asked_of_reference).logprobs_N],
                self._layout,
            )
        if (critic := models.critic) is not None:
            [values_BT] = dense_scores(sequences, lambda batch: [critic(batch)], self._layout)
        return _Scores(trainer_BT, entropy_BT, squared_BT, reference_BT, values_BT)

    def _rewards(
        self, rows: Rows, proximal_BT: Tensor, scores: _Scores, kl_coefficient: float
    ) -> tuple[Tensor, dict[str, float]]:
        """Return rewards, minus the KL penalty where the algorithm places it in the reward."""
        kl = self._algorithm.kl
        if kl is None or kl.place != "reward":
            return rows.rewards_BT, {}
        mask_BT = rows.action_mask_BT
        log_ratio_BT = proximal_BT - _present(scores.reference_BT)
        paid_BT = kl.penalized(rows.rewards_BT, log_ratio_BT, mask_BT, coefficient=kl_coefficient)
        # not from the rewards: a small coefficient's penalty is lost in the rounding of a reward
        nats_BT = -kl.penalized(torch.zeros_like(paid_BT), log_ratio_BT, mask_BT, coefficient=1.0)
        return paid_BT, {"kl": float(masked_mean(nats_BT, mask_BT))}

    def _credit(
        self, rows: Rows, rewards_BT: Tensor, proximal_BT: Tensor, scores: _Scores
    ) -> Credit:
        advantage = self._algorithm.advantage
        if advantage is None:  # no advantages: trajectories are imitated, or compared in pairs
            ones_BT = rows.loss_mask_BT.float()
            return Credit(ones_BT, ones_BT)
        credit = advantage.credit(
            CreditBatch(
                rewards_BT=rewards_BT,
                action_mask_BT=rows.loss_mask_BT,
                groups_B=rows.groups_B,
                turns_BT=rows.turns_BT,
                values_BT=scores.values_BT,
                baseline_rewards_B=rows.baseline_rewards_B,
                expected_rewards_B=rows.expected_rewards_B,
                behavior_logprobs_BT=rows.behavior_logprobs_BT,
                reference_logprobs_BT=scores.reference_BT,
                proximal_logprobs_BT=proximal_BT,
                sum_pi_squared_BT=scores.sum_pi_squared_BT,
                total_tokens_B=rows.total_tokens_B,
                reward_terms_BK=rows.reward_terms_BK,
                reward_names=rows.reward_names,
            )
        )
        silenced_B1 = rows.silenced_B[:, None]
        return credit._replace(advantages_BT=credit.advantages_BT.masked_fill(silenced_B1, 0.0))


def _explained_variance(rows: Rows) -> dict[str, float]:
    """Return `explained_variance`, the share of the outcomes' variance that was predicted.

    It is 1 - Var[outcome - expected] / Var[outcome], as trainers report it for a critic; {} if
    nothing was predicted, or all outcomes are equal.
    """
    if rows.expected_rewards_B is None:
        return {}
    outcomes_B = rows.reward_terms_BK[:, rows.reward_names.index("outcome")]
    if outcomes_B.max() == outcomes_B.min():
        return {}
    unexplained = (outcomes_B - rows.expected_rewards_B).var(correction=0)
    return {"explained_variance": float(1 - unexplained / outcomes_B.var(correction=0))}


def _all_of(scores: Scores) -> list[Tensor]:
    return [_present(values_N) for values_N in scores]


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "the algorithm says that it needs this"
    return tensor


class StepContext(NamedTuple):
    """The number and the sampling distribution of a training step."""

    number: int
    """Number of optimizer steps done before; also the version of the weights."""
    request: ScoreRequest
    """The distribution that the step's trajectories were sampled from."""
    kind_choice: KindChoice | None = None
    """Exploration mixed into that distribution on each action's first token."""


def engine_mismatch(
    rows: Rows,
    trainer_logprobs_BT: Tensor,
    *,
    scored: Sequence[int],
    step: StepContext,
) -> dict[str, float]:
    """Compare log-probs of engine and trainer, on trajectories of the current weights.

    Args:
        rows: rows of the step.
        trainer_logprobs_BT: [B, T] under the weights of version `step.number`, nats.
        scored: rows that the trainer scored before it changed a weight.
        step: its version; older trajectories are left out, as the weights have changed.

    Returns:
        `mismatch_kl` (nats per token, k3), and the mean and largest `logprob_gap` (nats); {} where
        no trajectory is of the current weights.
    """
    fresh = [row for row in scored if int(rows.versions_B[row]) == step.number]
    compared_BT, trainer_BT = rows.action_mask_BT, trainer_logprobs_BT
    if step.kind_choice is not None:
        opens_BT = _opens_action(rows, step.kind_choice)
        if step.request.is_truncated:
            # the token may come from the exploration or from the truncated policy: the trainer
            # cannot tell which support it was drawn from
            compared_BT = compared_BT & ~opens_BT
        trainer_BT = _mixed(rows, trainer_BT, step.kind_choice).where(opens_BT, trainer_BT)
    sampled_BT = compared_BT[fresh]
    if not bool(sampled_BT.any()):
        return {}
    found = mismatch_metrics(
        CorrectionBatch(
            # in float32 the k3 of a gap of 1e-4 is lost in rounding
            trainer_logprobs_BT=trainer_BT[fresh].double(),
            behavior_logprobs_BT=rows.behavior_logprobs_BT[fresh].double(),
            action_mask_BT=sampled_BT,
        )
    )
    names = ("mismatch_kl", "logprob_gap_mean", "logprob_gap_max")
    return {name: float(found[name]) for name in names}


def _token_ids(rows: Rows) -> Tensor:
    ids_BT = torch.zeros(rows.action_mask_BT.shape, dtype=torch.long)
    for row, sequence in enumerate(rows.sequences):
        ids_BT[row, : len(sequence.token_ids)] = torch.tensor(sequence.token_ids)
    return ids_BT


def _opens_action(rows: Rows, choice: KindChoice) -> Tensor:
    """Return [B, T] bool: tokens that were drawn from the mixture."""
    sampled_BT = rows.action_mask_BT & rows.action_mask_BT.roll(1, dims=1)
    return sampled_BT & (_token_ids(rows).roll(1, dims=1) == choice.after_id)


def _mixed(rows: Rows, logprobs_BT: Tensor, choice: KindChoice) -> Tensor:
    """Return [B, T] log-probs of the mixture that the kinds of actions are drawn from."""
    is_kind_BT = torch.isin(_token_ids(rows), torch.tensor(choice.kind_ids))
    uniform_BT = is_kind_BT / len(choice.kind_ids)
    return ((1 - choice.epsilon) * logprobs_BT.exp() + choice.epsilon * uniform_BT).log()


_FIRST_STEPS = 3
_ENOUGH_ATTEMPTS = 32
"""Attempts after which calls are expected: fewer may all answer without."""
_NOTABLE_SHARE = 0.1


def start_warning(history: Sequence[Mapping[str, float]], *, offers_tools: bool) -> str | None:
    """Return a log line if calls are not read, or no attempt was right; None at most steps.

    Calls are looked at once: after the first step with 32 attempts, at the latest after the third.
    Whether an attempt was right is asked after the third.

    Args:
        history: figures of the steps up to now.
        offers_tools: whether the policy may call any.
    """
    if not 1 <= len(history) <= _FIRST_STEPS:
        return None
    is_third = len(history) == _FIRST_STEPS
    silent = offers_tools and not any(row["tool_calls"] for row in history)
    if is_third and not any(row["pass_rate"] for row in history):
        cause = f" and none called a tool{_unread(history[-1])}" if silent else ""
        asked = " (does policy.dialect fit the model?)" if silent else ""
        return (
            f"warning: no attempt of the first {_FIRST_STEPS} steps was right{cause}{asked}; RL "
            "learns from attempts that differ. Train the warm start longer (warm_start.steps), "
            "give it more demonstrations (synthesis.trajectories), or ask easier tasks"
        )
    enough = [row["rollouts"] >= _ENOUGH_ATTEMPTS for row in history]
    if any(enough[:-1]) or not (enough[-1] or is_third):
        return None
    attempts = f"{history[-1]['rollouts']:g} attempts"
    if silent:
        return (
            f"warning: no tool was called in the first {attempts}, although tools are offered"
            f"{_unread(history[-1])}: either no call was parsed (does policy.dialect fit the "
            "model?), or the tasks are answered without"
        )
    # mistakes in a call are what RL cures; a call that its dialect cannot read is not
    unread = _unread(history[-1], but=(BROKEN, UNKNOWN_TOOL))
    return (
        f"warning: not all calls of the first {attempts} were run{unread}: an attempt whose call "
        "is not read ends there. Does policy.dialect fit the model?"
        if unread
        else None
    )


def _unread(row: Mapping[str, float], but: Sequence[str] = ()) -> str:
    """Return the notable shares of calls that were not run as written, in brackets."""
    found = {
        why: share
        for name, share in row.items()
        if (why := name.removeprefix(f"{UNREAD_CALLS}/")) not in (name, *but)
        and share >= _NOTABLE_SHARE
    }
    told = ", ".join(f"{share:.0%} {why}" for why, share in found.items())
    return f" (unread_calls of step {row['step']:g}: {told})" if told else ""


def mismatch_warning(figures: dict[str, float], *, step: int, limit: float) -> str | None:
    """Return a log line if engine and trainer disagree by more than `limit`, else None."""
    mismatch = figures.get("mismatch_kl", 0.0)
    if mismatch <= limit:
        return None
    return (
        f"warning: step {step}: engine and trainer disagree by {mismatch:.2g} nats per token (at "
        f"most {figures['logprob_gap_max']:.2g}), over training.max_mismatch_kl={limit:g}; set "
        'hardware.precision = "float32", or training.algorithm.proximal = "recomputed" with an '
        "off_policy rule"
    )
