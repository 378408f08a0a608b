"""State of the lock-step engine's rows: slots, unread and written tokens, shared prompts.

Axes: S slots, N rows of a step, T tokens of an action, H hidden size.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from espalier.rollout.engines.decoder import Decoder
from espalier.rollout.engines.drawing import DrawnTokens, RowSampling, uniforms
from espalier.rollout.engines.engine import Completion, KindChoice, Sampling
from espalier.rollout.engines.pages import Ints

Prompt = tuple[int, ...]


class Slots:
    """An engine's slots, and the sessions that wait for one, first come first served."""

    def __init__(self, count: int) -> None:
        self._free = list(reversed(range(count)))
        self._count = count
        self._queue: deque[asyncio.Future[int]] = deque()
        self._wanted: Counter[Prompt] = Counter()
        self._is_paused = False
        self._all_free = asyncio.Event()

    def is_wanted(self, prompt: Prompt) -> bool:
        """Whether a waiting session will begin with `prompt`."""
        return prompt in self._wanted

    async def take(self, prompt: Prompt) -> int:
        """Wait for a slot for a session that begins with `prompt`."""
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._wanted[prompt] += 1
        self._hand_out()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back(place.result())
            raise
        finally:
            self._wanted[prompt] -= 1
            if not self._wanted[prompt]:
                del self._wanted[prompt]

    def give_back(self, slot: int) -> None:
        """Free `slot`; the next in the queue takes it."""
        self._free.append(slot)
        self._hand_out()
        if len(self._free) == self._count:
            self._all_free.set()

    async def pause(self) -> None:
        """Hand out no more slots, and wait until all are given back."""
        self._is_paused = True
        if len(self._free) < self._count:
            self._all_free.clear()
            await self._all_free.wait()

    def resume(self) -> None:
        """Hand slots out again."""
        self._is_paused = False
        self._hand_out()

    def fail(self, error: BaseException) -> None:
        """Fail all waiting `take` calls."""
        for place in self._queue:
            if not place.done():
                place.set_exception(error)
        self._queue.clear()

    def _hand_out(self) -> None:
        while self._queue and self._free and not self._is_paused:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(self._free.pop())


class Ready(NamedTuple):
    """Rows whose context is wholly read, with the hidden state of its last token."""

    slots_N: Ints
    hidden_NH: Tensor


class _Kept(NamedTuple):
    slot: int
    hidden_H: Tensor


class Prefixes:
    """Shares prompts: one row reads, and rows with the same prompt copy its context.

    A row whose prompt another row is reading sits the step out and joins before the draw. For
    sessions that still wait for a slot, the context is kept in a spare slot, for as long as one of
    them waits.
    """

    def __init__(self, decoder: Decoder, slots: Slots, *, first_spare: int) -> None:
        self._decoder = decoder
        self._slots = slots
        self._fresh: dict[int, Prompt] = {}
        self._kept: dict[Prompt, _Kept] = {}
        self._next_spare = first_spare
        self._spares: list[int] = []

    def opened(self, slot: int, prompt: Prompt) -> None:
        """Register a row in `slot` that has read nothing, with `prompt` as its context."""
        self._fresh[slot] = prompt

    def diverged(self, slot: int) -> None:
        """Unregister `slot`: its context is more than its prompt, or it is closed."""
        self._fresh.pop(slot, None)

    def followers(self, active_N: Ints) -> list[int]:
        """Rows that do not read their prompt, because another row does or did."""
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
        """Copy contexts that have now been read to their followers.

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


_NO_TOKEN = -1


class RowState:
    """Sampling parameters, unread tokens, and the action in progress of every slot, in arrays."""

    def __init__(self, slots: int) -> None:
        self.is_sampling_S = np.zeros(slots, bool)
        self.num_unread_S: Ints = np.zeros(slots, np.int64)
        """Tokens at the end of the context that the model has not read."""
        self._unread: list[list[int]] = [[] for _ in range(slots)]
        # where one token is unread it is `_last_S`, and the list is out of date
        self._last_S: Ints = np.zeros(slots, np.int64)
        self._lengths_S: Ints = np.zeros(slots, np.int64)
        self._seeds_S = np.zeros(slots, np.uint64)
        self._temperatures_S = np.zeros(slots, np.float32)
        self._top_p_S = np.zeros(slots, np.float32)
        self._top_k_S: Ints = np.zeros(slots, np.int64)
        self._kind_choices: list[KindChoice | None] = [None] * slots
        self._choose_after_S: Ints = np.full(slots, _NO_TOKEN, np.int64)
        self._written_ST: Ints = np.zeros((slots, 64), np.int64)
        self._logprobs_ST = np.zeros((slots, 64), np.float32)
        self._num_written_S: Ints = np.zeros(slots, np.int64)
        self._limits_S: Ints = np.zeros(slots, np.int64)

    def open(self, slot: int, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """Begin a context in `slot`."""
        self._lengths_S[slot] = 0
        self.num_unread_S[slot] = 0
        self._unread[slot] = []
        self._num_written_S[slot] = 0
        self._seeds_S[slot] = np.uint64(sampling.seed % 2**64)
        self._temperatures_S[slot] = sampling.temperature
        self._top_p_S[slot] = sampling.top_p
        self._top_k_S[slot] = sampling.top_k
        choice = sampling.kind_choice
        self._kind_choices[slot] = choice
        self._choose_after_S[slot] = _NO_TOKEN if choice is None else choice.after_id
        self.append(slot, prompt_ids)

    def append(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens, at least one, that were not sampled."""
        unread = [int(self._last_S[slot])] if self.num_unread_S[slot] == 1 else self._unread[slot]
        self._unread[slot] = [*unread[: self.num_unread_S[slot]], *token_ids]
        self._last_S[slot] = token_ids[-1]
        self._lengths_S[slot] += len(token_ids)
        self.num_unread_S[slot] += len(token_ids)

    def start(self, slot: int, max_tokens: int) -> None:
        """Begin an action of at most `max_tokens` tokens."""
        wider = max_tokens - self._written_ST.shape[1]
        if wider > 0:
            self._written_ST = np.pad(self._written_ST, ((0, 0), (0, wider)))
            self._logprobs_ST = np.pad(self._logprobs_ST, ((0, 0), (0, wider)))
        self._num_written_S[slot] = 0
        self._limits_S[slot] = max_tokens
        self.is_sampling_S[slot] = True

    def close(self, slot: int) -> None:
        """End the action in progress, if there is one, and forget what is unread."""
        self.is_sampling_S[slot] = False
        self._unread[slot] = []

    def read(self, slots_N: Ints) -> Ints:
        """Take the unread tokens of the slots, which are sorted by their number of them."""
        counts_N = self.num_unread_S[slots_N]
        num_single = int(np.searchsorted(counts_N, 2))
        parts = [np.array(self._unread[slot], np.int64) for slot in slots_N[num_single:].tolist()]
        self.num_unread_S[slots_N] = 0
        return np.concatenate((self._last_S[slots_N[:num_single]], *parts))

    def mark_read(self, slots_N: Ints) -> None:
        """Mark contexts as read: they were copied from rows that have read them."""
        self.num_unread_S[slots_N] = 0

    def sampling(self, slots_N: Ints) -> RowSampling:
        """Sampling parameters of each slot's next token."""
        return RowSampling(
            temperatures_N=self._temperatures_S[slots_N],
            top_p_N=self._top_p_S[slots_N],
            top_k_N=self._top_k_S[slots_N],
            uniforms_N=uniforms(self._seeds_S[slots_N], self._lengths_S[slots_N]),
            kind_choices=self._choosing(slots_N),
        )

    def write(self, slots_N: Ints, drawn: DrawnTokens) -> None:
        """Append the drawn tokens, which are unread, to the contexts and the actions."""
        places_N = self._num_written_S[slots_N]
        self._written_ST[slots_N, places_N] = drawn.token_ids_N
        self._logprobs_ST[slots_N, places_N] = drawn.logprobs_N
        self._num_written_S[slots_N] += 1
        self._lengths_S[slots_N] += 1
        self._last_S[slots_N] = drawn.token_ids_N
        self.num_unread_S[slots_N] = 1

    def is_full(self, slots_N: Ints) -> np.ndarray:
        """[N] bool, whether the action has reached `max_tokens`."""
        return self._num_written_S[slots_N] >= self._limits_S[slots_N]

    def action_ids(self, slot: int) -> list[int]:
        """The tokens of the action in progress."""
        return self._written_ST[slot, : self._num_written_S[slot]].tolist()

    def finish(self, slot: int, *, stopped: bool) -> Completion:
        """End the action in progress."""
        self.is_sampling_S[slot] = False
        logprobs = self._logprobs_ST[slot, : self._num_written_S[slot]].tolist()
        return Completion(tuple(self.action_ids(slot)), tuple(logprobs), stopped)

    def _choosing(self, slots_N: Ints) -> tuple[tuple[KindChoice, Ints], ...]:
        is_choosing_N = self._last_S[slots_N] == self._choose_after_S[slots_N]
        is_choosing_N &= self._num_written_S[slots_N] > 0
        if not is_choosing_N.any():
            return ()
        rows: dict[KindChoice, list[int]] = {}
        for row in np.nonzero(is_choosing_N)[0].tolist():
            choice = self._kind_choices[slots_N[row]]
            assert choice is not None, "only rows with a kind_choice have an `after` token"
            rows.setdefault(choice, []).append(row)
        return tuple((choice, np.array(numbers)) for choice, numbers in rows.items())
