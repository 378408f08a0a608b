"""Packing: several token sequences in one row, each blind to the others.

Attention is block-diagonal and positions restart with every sequence. A short convolution would
read over the border, so sequences are set apart by as many masked tokens as its kernel reaches
back: their gated inputs are zero, as at the start of a row.

Axes: R rows, T tokens of a row, N scored tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One sequence to train on.

        token_ids          P P P A A O O A
        loss_mask          0 0 0 1 1 0 0 1
        behavior_logprobs  0 0 0 a b 0 0 c      empty in supervised training

    `advantage` is one number for the whole sequence.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    behavior_logprobs: tuple[float, ...] = ()
    advantage: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows of packed sequences, and the flat list of tokens that are scored."""

    token_ids_RT: Tensor
    position_ids_RT: Tensor
    segment_ids_RT: Tensor
    """0 between sequences, 1, 2, ... inside them."""
    scored_rows_N: Tensor
    scored_columns_N: Tensor
    """Where each scored token stands; the column before it predicts it."""
    sequence_N: Tensor
    """Which sequence (by its index in the input) a scored token belongs to."""
    behavior_logprobs_N: Tensor
    advantages_N: Tensor
    num_sequences: int

    @property
    def targets_N(self) -> Tensor:
        """Ids of the scored tokens."""
        return self.token_ids_RT[self.scored_rows_N, self.scored_columns_N]

    @property
    def num_tokens(self) -> int:
        """Real tokens, padding left out."""
        return int((self.segment_ids_RT > 0).sum())


def convolution_reach(model: PreTrainedModel) -> int:
    """How many tokens back the model's convolutions look; 0 for pure attention."""
    kernel = getattr(model.config, "conv_L_cache", None)
    return int(kernel) - 1 if kernel else 0


def plan_rows(lengths: Sequence[int], *, row_tokens: int, gap: int) -> list[list[int]]:
    """First-fit-decreasing assignment of sequences to rows of `row_tokens`.

    Returns:
        One list of sequence indices per row. A sequence longer than a row gets one of its own.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        needed = lengths[index] + gap
        slot = next((row for row, space in enumerate(free) if space >= needed), None)
        if slot is None:
            rows.append([])
            free.append(row_tokens + gap)
            slot = len(rows) - 1
        rows[slot].append(index)
        free[slot] -= needed
    return rows


def pack(sequences: Sequence[TrainingSequence], *, row_tokens: int, gap: int) -> PackedBatch:
    """Pack `sequences` into rows and list what is scored."""
    rows = plan_rows([len(s.token_ids) for s in sequences], row_tokens=row_tokens, gap=gap)
    width = max(sum(len(sequences[i].token_ids) + gap for i in row) for row in rows)
    token_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros_like(token_ids)
    segments = torch.zeros_like(token_ids)
    where: list[tuple[int, int, int]] = []
    logprobs: list[float] = []
    for row_number, row in enumerate(rows):
        start = 0
        for order, index in enumerate(row, start=1):
            sequence = sequences[index]
            end = start + len(sequence.token_ids)
            token_ids[row_number, start:end] = torch.tensor(sequence.token_ids)
            positions[row_number, start:end] = torch.arange(end - start)
            segments[row_number, start:end] = order
            scored = [t for t, keep in enumerate(sequence.loss_mask) if keep and t > 0]
            where.extend((row_number, start + t, index) for t in scored)
            behavior = sequence.behavior_logprobs
            logprobs.extend(behavior[t] if behavior else 0.0 for t in scored)
            start = end + gap
    scored_at = torch.tensor(where, dtype=torch.long).reshape(-1, 3)
    advantages = torch.tensor([sequence.advantage for sequence in sequences])
    return PackedBatch(
        token_ids_RT=token_ids,
        position_ids_RT=positions,
        segment_ids_RT=segments,
        scored_rows_N=scored_at[:, 0],
        scored_columns_N=scored_at[:, 1],
        sequence_N=scored_at[:, 2],
        behavior_logprobs_N=torch.tensor(logprobs),
        advantages_N=advantages[scored_at[:, 2]],
        num_sequences=len(sequences),
    )


def micro_batches(
    sequences: Sequence[TrainingSequence], *, max_tokens: int
) -> list[list[TrainingSequence]]:
    """Cut `sequences` into runs of at most `max_tokens` tokens, in their order."""
    batches: list[list[TrainingSequence]] = []
    used = 0
    for sequence in sequences:
        length = len(sequence.token_ids)
        if not batches or used + length > max_tokens:
            batches.append([])
            used = 0
        batches[-1].append(sequence)
        used += length
    return batches
