"""Prompts that several sessions begin with: one row reads, the others copy what it made of it.

A row whose prompt is being read by another sits the step out and joins it before the draw. For
sessions that still wait for a slot the context is kept in a slot of its own, exactly as long as one
of them waits: no other memory is held.

Axes: N rows of a step, H width.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.pages import Ints
from espalier.rollout.engines.slots import Prompt, Slots


class Ready(NamedTuple):
    """Rows that have read everything and draw a token next."""

    slots_N: Ints
    hidden_NH: Tensor


class _Kept(NamedTuple):
    slot: int
    hidden_H: Tensor


class Prefixes:
    """Knows which rows have read nothing yet, and what is kept for those to come."""

    def __init__(self, decoder: Decoder, slots: Slots, *, first_spare: int) -> None:
        self._decoder = decoder
        self._slots = slots
        self._fresh: dict[int, Prompt] = {}
        self._kept: dict[Prompt, _Kept] = {}
        self._next_spare = first_spare
        self._spares: list[int] = []

    def opened(self, slot: int, prompt: Prompt) -> None:
        """The row in `slot` has read nothing, and its context is `prompt`."""
        self._fresh[slot] = prompt

    def diverged(self, slot: int) -> None:
        """The context of `slot` is no longer that of its prompt alone."""
        self._fresh.pop(slot, None)

    def followers(self, active_N: Ints) -> list[int]:
        """Which of the rows do not read, because another one does or did."""
        if not self._fresh:
            return []
        taken = set(self._kept)
        following = []
        for slot in active_N.tolist():
            prompt = self._fresh.get(slot)
            if prompt in taken:
                following.append(slot)
            elif prompt is not None:
                taken.add(prompt)
        return following

    def join(self, followers: list[int], read: Ready) -> Ready:
        """Let the followers of contexts that have now been read copy them.

        Returns:
            The rows of `read`, and those followers.
        """
        if not self._fresh:
            return read
        row_of = {
            self._fresh.pop(slot): row
            for row, slot in enumerate(read.slots_N.tolist())
            if slot in self._fresh
        }
        for prompt, row in row_of.items():
            if self._slots.is_wanted(prompt):
                self._keep(prompt, _Kept(int(read.slots_N[row]), read.hidden_NH[row]))
        slots, hidden = [read.slots_N], [read.hidden_NH]
        for prompt, members in self._by_prompt(followers).items():
            if prompt in row_of:
                source, last_H = int(read.slots_N[row_of[prompt]]), read.hidden_NH[row_of[prompt]]
            elif prompt in self._kept:
                source, last_H = self._kept[prompt]
            else:
                continue
            self._decoder.fork(source, members)
            slots.append(np.array(members))
            hidden.append(last_H.expand(len(members), -1))
            for slot in members:
                del self._fresh[slot]
        self._drop_unwanted()
        return Ready(np.concatenate(slots), torch.cat(hidden))

    def _by_prompt(self, slots: list[int]) -> dict[Prompt, list[int]]:
        groups: dict[Prompt, list[int]] = {}
        for slot in slots:
            groups.setdefault(self._fresh[slot], []).append(slot)
        return groups

    def _keep(self, prompt: Prompt, read: _Kept) -> None:
        if self._spares:
            spare = self._spares.pop()
        else:
            spare = self._next_spare
            self._next_spare += 1
        self._decoder.fork(read.slot, [spare])
        self._kept[prompt] = _Kept(spare, read.hidden_H)

    def _drop_unwanted(self) -> None:
        wanted = set(self._fresh.values())
        for prompt in [p for p in self._kept if p not in wanted and not self._slots.is_wanted(p)]:
            spare = self._kept.pop(prompt).slot
            self._decoder.release(spare)
            self._spares.append(spare)
