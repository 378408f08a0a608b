"""Which sequences a step of supervised training draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from espalier.training.packing import TrainingSequence


class EpochOrder:
    """Draws a step's sequences from shuffled epochs; a function of the step number alone."""

    def __init__(self, sequences: Sequence[TrainingSequence], per_step: int, seed: int) -> None:
        self._sequences = sequences
        self._per_step = per_step
        self._seed = seed
        self._order = lru_cache(maxsize=4)(self._shuffled)

    def at(self, step: int) -> list[TrainingSequence]:
        """The sequences of optimizer step `step`, counted from 0."""
        first = step * self._per_step
        return [self._draw(number) for number in range(first, first + self._per_step)]

    def _draw(self, number: int) -> TrainingSequence:
        epoch, position = divmod(number, len(self._sequences))
        return self._sequences[self._order(epoch)[position]]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self._sequences)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        return order
