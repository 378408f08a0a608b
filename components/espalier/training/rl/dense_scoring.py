"""Scoring all rows of a step with some model, as dense rows, without gradient.

Axes: B trajectories, T token columns, N scored tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.training.hardware import Hardware
from espalier.training.packing import PackedBatch, TrainingSequence, pack
from espalier.training.parallel import Processes
from espalier.training.rl.minibatches import micro_batches, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows become packed micro-batches, on which device, shared by how many processes."""

    hardware: Hardware
    processes: Processes
    row_tokens: int
    gap: int
    """Masked tokens between the sequences of a row; see `packing`."""
    micro_batch_tokens: int

    def packed(self, sequences: Sequence[TrainingSequence]) -> PackedBatch:
        """One micro-batch, on the device."""
        batch = pack(sequences, row_tokens=self.row_tokens, gap=self.gap)
        return batch.to(self.hardware.device)


def dense_scores(
    sequences: Sequence[TrainingSequence],
    score: Callable[[PackedBatch], Sequence[Tensor]],
    layout: Layout,
    *,
    figures: int = 1,
) -> list[Tensor]:
    """What `score` says of every scored token, [B, T] on the CPU each; 0 on tokens not scored.

    Args:
        sequences: all rows of the step.
        score: `figures` figures of a packed micro-batch's tokens, [N] each.
        layout: its processes take turns, and all of them get all rows.
        figures: how many.
    """
    lengths = [len(sequence.token_ids) for sequence in sequences]
    runs = micro_batches(
        [(row,) for row in range(len(lengths))], lengths, max_tokens=layout.micro_batch_tokens
    )
    dense = [torch.zeros(len(lengths), max(lengths)) for _ in range(figures)]
    with torch.no_grad(), layout.hardware.precision():
        for run, weight in layout.processes.share(runs):
            rows = rows_of(run)
            batch = layout.packed([sequences[row] for row in rows])
            for values_BT, values_N in zip(dense, score(batch), strict=True):
                scored_BT = batch.dense(values_N.float() * weight, width=max(lengths))
                values_BT[rows] += scored_BT.cpu()
    layout.processes.sum(dense)
    return dense
