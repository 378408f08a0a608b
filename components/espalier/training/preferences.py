"""DPO on given preference pairs: the last phase of the warm start, which samples nothing.

The reference is the policy at the beginning of the phase. Its log-probs are computed once, before
the first step, and kept beside the checkpoints. Axes: B sequences, T tokens; P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from espalier.algorithms.batch import LossBatch, Totals
from espalier.algorithms.losses.dpo import Dpo
from espalier.records import whole_file
from espalier.training.checkpoint import CheckpointStore
from espalier.training.packing import TrainingSequence, micro_batches
from espalier.training.scoring import score
from espalier.training.supervised import EpochOrder, SupervisedLoop, SupervisedPlan

HISTORY_COLUMNS = (
    "step", "preference_loss", "pair_accuracy", "pair_margin", "learning_rate", "grad_norm",
    "tokens", "dev_em",
)  # fmt: skip
_REFERENCE = "reference.pt"


def pairs_at(
    sequences: Sequence[TrainingSequence], per_step: int, seed: int
) -> Callable[[int], list[TrainingSequence]]:
    """Return a function from a step to its sequences: chosen and rejected of each pair in turn."""
    order = EpochOrder(range(len(sequences) // 2), per_step, seed)
    return lambda step: [one for n in order.at(step) for one in sequences[2 * n : 2 * n + 2]]


class PreferenceLoop(SupervisedLoop):
    """A `SupervisedLoop` over pairs.

    Where the plan has a `dev_score`, later weights are kept if they answer as many dev questions
    as the best before them: pairs may teach what no dev question tests.
    """

    _shown = ("preference_loss", "pair_accuracy", "dev_em")

    def __init__(
        self,
        model: PreTrainedModel,
        plan: SupervisedPlan,
        store: CheckpointStore,
        sequences: Sequence[TrainingSequence],
        rule: Dpo,
    ) -> None:
        """Compute the reference's log-probs, or load those of an earlier process.

        Args:
            model: the reference, which is trained in place.
            plan: a plan whose `sequences_at` is `pairs_at` of `sequences`.
            store: checkpoint store of the phase.
            sequences: sequences of all pairs.
            rule: the loss.
        """
        super().__init__(model, plan, store)
        self._rule = rule
        self._sequences = sequences
        self._reference = self._kept_reference(sequences)

    def reference_margins(self) -> list[float]:
        """Return each pair's log-prob of chosen minus rejected, nats, by the reference."""
        sums = [float(self._reference[one].sum()) for one in self._sequences]
        return [chosen - rejected for chosen, rejected in zip(sums[::2], sums[1::2], strict=True)]

    def _kept_reference(
        self, sequences: Sequence[TrainingSequence]
    ) -> dict[TrainingSequence, Tensor]:
        different = list(dict.fromkeys(sequences))
        path = self._store.directory / _REFERENCE
        if path.is_file():
            kept = torch.load(path, weights_only=True, map_location="cpu")
            if kept["identity"] == self._store.identity:
                return dict(zip(different, kept["logprobs"], strict=True))
        logprobs = self._scored(different)
        with whole_file(path) as draft, draft.open("wb") as stream:
            torch.save({"identity": self._store.identity, "logprobs": logprobs}, stream)
        return dict(zip(different, logprobs, strict=True))

    @torch.no_grad()
    def _scored(self, sequences: Sequence[TrainingSequence]) -> list[Tensor]:
        """Return [T] for each: log-probs under the current weights, 0 where the mask is 0."""
        self._model.eval()
        rows: list[Tensor] = []
        for part in micro_batches(sequences, max_tokens=self._plan.micro_batch_tokens):
            logprobs_BT = self._forwarded(part)
            lengths = [len(one.token_ids) for one in part]
            rows += [row[:n].clone() for row, n in zip(logprobs_BT.cpu(), lengths, strict=True)]
        return rows

    def _forwarded(self, part: Sequence[TrainingSequence]) -> Tensor:
        """Return [B, T] log-probs."""
        hardware = self._plan.hardware
        batch = self._laid_out(part).to(hardware.device)
        with hardware.precision():
            logprobs_N = score(self._model, batch).logprobs_N
        return batch.dense(logprobs_N, width=max(len(one.token_ids) for one in part))

    def _add_gradient(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        figures: dict[str, float] = {"preference_loss": 0.0, "tokens": 0.0}
        totals = _totals(sequences)
        budget = self._plan.micro_batch_tokens
        for part in micro_batches(sequences, max_tokens=budget, together=2):
            policy_BT = self._forwarded(part)
            found = self._rule.loss(self._loss_batch(part, policy_BT, totals), "seq_mean_token_sum")
            found.loss.backward()
            figures["preference_loss"] += float(found.loss.detach())
            figures["tokens"] += sum(len(one.token_ids) for one in part)
            for name, value in found.metrics.items():
                figures[name] = figures.get(name, 0.0) + float(value)
        return figures

    def _loss_batch(
        self, part: Sequence[TrainingSequence], policy_BT: Tensor, totals: Totals
    ) -> LossBatch:
        device = policy_BT.device
        reference = [self._reference[one] for one in part]
        masks = [torch.tensor(one.loss_mask, dtype=torch.bool) for one in part]
        return LossBatch(
            policy_logprobs_BT=policy_BT,
            proximal_logprobs_BT=policy_BT.detach(),
            advantages_BT=torch.zeros_like(policy_BT),
            loss_mask_BT=pad_sequence(masks, batch_first=True).to(device),
            totals=totals,
            reference_logprobs_BT=pad_sequence(reference, batch_first=True).to(device),
            pairs_P2=torch.arange(len(part), device=device).view(-1, 2),
        )


def _totals(sequences: Sequence[TrainingSequence]) -> Totals:
    lengths = [sum(one.loss_mask) for one in sequences]
    return Totals(
        tokens=float(sum(lengths)),
        sequences=float(len(sequences)),
        rows=float(len(sequences)),
        max_tokens=float(max(lengths)),
        pairs=len(sequences) / 2,
    )
