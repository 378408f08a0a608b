"""Packing: several token sequences in one row, without attention between them.

Attention is block-diagonal and positions restart with every sequence. A short convolution would
read across the border, so sequences are separated by as many masked tokens as its kernel looks
back: their gated inputs are zero, as at the start of a row.

Axes: R rows, T tokens of a row, N scored tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One sequence to train on.

        token_ids  P P P A A O O A
        loss_mask  0 0 0 1 1 0 0 1

    A sequence that outgrew its context has several windows (`Trajectory.window_starts`); they are
    packed like separate sequences, and scored as one.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    window_starts: tuple[int, ...] = (0,)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(start, end) of each context in `token_ids`."""
        ends = (*self.window_starts[1:], len(self.token_ids))
        return list(zip(self.window_starts, ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows of packed sequences, and the flat list of tokens that are scored."""

    token_ids_RT: Tensor
    position_ids_RT: Tensor
    segment_ids_RT: Tensor
    """0 between sequences, 1, 2, ... inside them."""
    scored_rows_N: Tensor
    scored_columns_N: Tensor
    """Position of each scored token; the column before it predicts it."""
    sequence_N: Tensor
    """Which sequence (by its index in the input) a scored token belongs to."""
    token_N: Tensor
    """The position of each scored token in that sequence."""
    num_sequences: int

    @property
    def targets_N(self) -> Tensor:
        """Ids of the scored tokens."""
        return self.token_ids_RT[self.scored_rows_N, self.scored_columns_N]

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return int((self.segment_ids_RT > 0).sum())

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on `device`."""
        if device == self.token_ids_RT.device:
            return self
        tensors = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def dense(self, values_N: Tensor, *, width: int) -> Tensor:
        """[B, `width`]: every scored token's value in its sequence's row and column, 0 elsewhere.

        Gradients flow back to `values_N`.
        """
        at = (self.sequence_N, self.token_N)
        return values_N.new_zeros(self.num_sequences, width).index_put(at, values_N)

    def flat(self, values_BT: Tensor) -> Tensor:
        """[N]: the values of the scored tokens; the inverse of `dense`."""
        return values_BT[self.sequence_N, self.token_N]


def convolution_reach(model: PreTrainedModel) -> int:
    """Return how many tokens back the model's convolutions look; 0 for pure attention."""
    kernel = getattr(model.config, "conv_L_cache", None)
    return int(kernel) - 1 if kernel else 0


def plan_rows(lengths: Sequence[int], *, row_tokens: int, gap: int) -> list[list[int]]:
    """Assign sequences to rows of `row_tokens` by first-fit-decreasing.

    Returns:
        One list of sequence indices per row. A sequence longer than a row gets a row of its own.
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
    """Pack `sequences` into rows and list the scored tokens."""
    windows = [(index, *window) for index, s in enumerate(sequences) for window in s.windows]
    lengths = [end - start for _, start, end in windows]
    rows = plan_rows(lengths, row_tokens=row_tokens, gap=gap)
    width = max(sum(lengths[i] + gap for i in row) for row in rows)
    token_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions = torch.zeros_like(token_ids)
    segments = torch.zeros_like(token_ids)
    where: list[tuple[int, int, int, int]] = []
    for row_number, row in enumerate(rows):
        column = 0
        for order, number in enumerate(row, start=1):
            index, start, end = windows[number]
            place = slice(column, column + end - start)
            token_ids[row_number, place] = torch.tensor(sequences[index].token_ids[start:end])
            positions[row_number, place] = torch.arange(end - start)
            segments[row_number, place] = order
            # nothing predicts the first token of a context
            scored = [t for t in range(start + 1, end) if sequences[index].loss_mask[t]]
            where.extend((row_number, column + t - start, index, t) for t in scored)
            column = place.stop + gap
    scored_at = torch.tensor(where, dtype=torch.long).reshape(-1, 4)
    return PackedBatch(
        token_ids_RT=token_ids,
        position_ids_RT=positions,
        segment_ids_RT=segments,
        scored_rows_N=scored_at[:, 0],
        scored_columns_N=scored_at[:, 1],
        sequence_N=scored_at[:, 2],
        token_N=scored_at[:, 3],
        num_sequences=len(sequences),
    )


def micro_batches(
    sequences: Sequence[TrainingSequence], *, max_tokens: int, together: int = 1
) -> list[list[TrainingSequence]]:
    """Cut `sequences` into runs of at most `max_tokens` tokens, in their order.

    Args:
        sequences: sequences of one step.
        max_tokens: a longer sequence gets a run of its own.
        together: number of neighbours that stay in one run: 2 for pairs.
    """
    batches: list[list[TrainingSequence]] = []
    used = 0
    for first in range(0, len(sequences), together):
        unit = sequences[first : first + together]
        length = sum(len(sequence.token_ids) for sequence in unit)
        if not batches or used + length > max_tokens:
            batches.append([])
            used = 0
        batches[-1].extend(unit)
        used += length
    return batches
