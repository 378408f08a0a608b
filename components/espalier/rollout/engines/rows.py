"""The state of the lock-step engine's rows: slots, unread tokens and written tokens.

Axes: S slots, N rows of a step, G groups of rows with the same context, L distributions that they
draw from, T tokens of an action.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from espalier.rollout.engines.drawing import DrawnTokens, RowSampling, uniforms
from espalier.rollout.engines.engine import Completion, KindChoice, Sampling
from espalier.rollout.engines.pages import Ints

Prompt = tuple[int, ...]


class Slots:
    """An engine's slots, and the sessions that wait for one, first come, first served."""

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
        """Assign no more slots, and wait until all are given back."""
        self._is_paused = True
        if len(self._free) < self._count:
            self._all_free.clear()
            await self._all_free.wait()

    def resume(self) -> None:
        """Assign slots again."""
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


_NO_TOKEN = -1


class DraftedPositions(NamedTuple):
    """Positions D where rows with drafts draw: before the draft, and after each of its tokens.

    a row with the draft B C, and one without: four tokens are drawn

    expected_D   B C -1 -1      the token that the draft expects to be drawn
    offsets_D    0 1  2  0
    """

    firsts_N: Ints
    """The first position of each row."""
    offsets_D: Ints
    """The position within its row."""
    previous_D: Ints
    """The token before each position."""
    expected_D: Ints


class Positions(NamedTuple):
    """Where a step draws tokens: once in each row, and after each token of its draft."""

    slots_D: Ints
    hidden_D: Ints
    """The hidden state that the distribution is computed from."""
    drafted: DraftedPositions | None = None


class RowState:
    """Sampling parameters, unread tokens, and the action in progress of every slot, in arrays."""

    def __init__(self, slots: int) -> None:
        self.is_sampling_S = np.zeros(slots, bool)
        self.num_unread_S: Ints = np.zeros(slots, np.int64)
        """Number of tokens at the end of the context that the model has not read."""
        self._unread: list[list[int]] = [[] for _ in range(slots)]
        self.last_S: Ints = np.zeros(slots, np.int64)
        """The last token of the context; where only one is unread, `_unread` is out of date."""
        self._lengths_S: Ints = np.zeros(slots, np.int64)
        self._seeds_S = np.zeros(slots, np.uint64)
        self._temperatures_S = np.zeros(slots, np.float32)
        self._top_p_S = np.zeros(slots, np.float32)
        self._top_k_S: Ints = np.zeros(slots, np.int64)
        self._kind_choices: list[KindChoice | None] = [None] * slots
        self._parameters: list[Sampling | None] = [None] * slots
        self._parameters_S: Ints = np.zeros(slots, np.int64)
        self._parameter_ids: dict[Sampling | None, int] = {}
        self._choose_after_S: Ints = np.full(slots, _NO_TOKEN, np.int64)
        self._written_ST: Ints = np.zeros((slots, 64), np.int64)
        self._logprobs_ST = np.zeros((slots, 64), np.float32)
        self._num_written_S: Ints = np.zeros(slots, np.int64)
        self._limits_S: Ints = np.zeros(slots, np.int64)
        self.num_drafted_S: Ints = np.zeros(slots, np.int64)
        """How many of the unread tokens are a draft: tokens that the row may draw next."""

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
        self._parameters[slot] = replace(sampling, seed=0)
        if len(self._parameter_ids) > 2 * len(self._parameters):  # a server runs for weeks
            in_use = dict.fromkeys(self._parameters)
            self._parameter_ids = {one: number for number, one in enumerate(in_use)}
            self._parameters_S[:] = [self._parameter_ids[one] for one in self._parameters]
        self._parameters_S[slot] = self._parameter_ids.setdefault(
            self._parameters[slot], len(self._parameter_ids)
        )
        self.append(slot, prompt_ids)

    def append(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens, at least one, that were not sampled."""
        unread = self.unread_ids(slot)[: self.num_unread_S[slot]]
        self._unread[slot] = [*unread, *token_ids]
        self.last_S[slot] = token_ids[-1]
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
        """End any action in progress, and discard the unread tokens."""
        self.is_sampling_S[slot] = False
        self._unread[slot] = []
        self.num_drafted_S[slot] = 0

    def draft(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append a draft: tokens that the row may draw next, read before it draws."""
        self._unread[slot] = [*self.unread_ids(slot), *token_ids]
        self.num_unread_S[slot] += len(token_ids)
        self.num_drafted_S[slot] = len(token_ids)

    def num_written(self, slots_N: Ints) -> Ints:
        """Return [N]: tokens of the actions in progress."""
        return self._num_written_S[slots_N]

    def room(self, slot: int) -> int:
        """Return how many more tokens the action may get."""
        return int(self._limits_S[slot] - self._num_written_S[slot])

    def positions(self, slots_N: Ints, hidden_N: Ints) -> Positions:
        """Return where the rows draw, and discard their drafts."""
        drafted_N = self.num_drafted_S[slots_N]
        if not drafted_N.any():
            return Positions(slots_N, hidden_N)
        self.num_drafted_S[slots_N] = 0
        rows_D = np.repeat(np.arange(len(slots_N)), drafted_N + 1)
        firsts_N = np.cumsum(drafted_N + 1) - drafted_N - 1
        offsets_D = np.arange(len(rows_D)) - firsts_N[rows_D]
        drafts = [
            (*self._unread[slot][-drafted:], _NO_TOKEN) if drafted else (_NO_TOKEN,)
            for slot, drafted in zip(slots_N.tolist(), drafted_N.tolist(), strict=True)
        ]
        expected_D = np.array([token for draft in drafts for token in draft])
        previous_D = np.roll(expected_D, 1)
        previous_D[firsts_N] = self.last_S[slots_N]
        slots_D, hidden_D = slots_N[rows_D], hidden_N[rows_D] + offsets_D
        return Positions(
            slots_D, hidden_D, DraftedPositions(firsts_N, offsets_D, previous_D, expected_D)
        )

    def read(self, slots_N: Ints) -> Ints:
        """Take the unread tokens of the slots, which are sorted by how many they have."""
        counts_N = self.num_unread_S[slots_N]
        num_single = int(np.searchsorted(counts_N, 2))
        parts = [np.array(self._unread[slot], np.int64) for slot in slots_N[num_single:].tolist()]
        self.num_unread_S[slots_N] = 0
        return np.concatenate((self.last_S[slots_N[:num_single]], *parts))

    def mark_read(self, slots_N: Ints) -> None:
        """Mark contexts as read because other rows with the same context have read them."""
        self.num_unread_S[slots_N] = 0

    def skip(self, slot: int, count: int) -> None:
        """Mark the first `count` unread tokens of a context as read."""
        self._unread[slot] = self._unread[slot][count:]
        self.num_unread_S[slot] -= count

    def unread_ids(self, slot: int) -> list[int]:
        """Return the unread tokens of a slot."""
        if self.num_unread_S[slot] == 1:
            return [int(self.last_S[slot])]
        return self._unread[slot]

    def sampling(self, at: Positions) -> tuple[RowSampling, Ints]:
        """Return how the tokens are drawn.

        Returns:
            The parameters, and [L] the hidden state that each distribution is computed from.
        """
        slots_N, groups_N, _ = at
        is_choosing_N = self._is_choosing(at)
        positions_N = self._lengths_S[slots_N]
        if at.drafted is not None:
            positions_N += at.drafted.offsets_D
        kinds_N = self._parameters_S[slots_N] * 2 + is_choosing_N
        keys_N = groups_N * (2 * len(self._parameter_ids)) + kinds_N
        _, firsts_L, sources_N = np.unique(keys_N, return_index=True, return_inverse=True)
        slots_L = slots_N[firsts_L]
        rows = RowSampling(
            temperatures_L=self._temperatures_S[slots_L],
            top_p_L=self._top_p_S[slots_L],
            top_k_L=self._top_k_S[slots_L],
            uniforms_N=uniforms(self._seeds_S[slots_N], positions_N),
            sources_N=sources_N,
            kind_choices=self._choosing(slots_L, is_choosing_N[firsts_L]),
        )
        return rows, groups_N[firsts_L]

    def write(self, slots_N: Ints, drawn: DrawnTokens) -> None:
        """Append the drawn tokens, still unread, to the contexts and the actions."""
        places_N = self._num_written_S[slots_N]
        self._written_ST[slots_N, places_N] = drawn.token_ids_N
        self._logprobs_ST[slots_N, places_N] = drawn.logprobs_N
        self._num_written_S[slots_N] += 1
        self._lengths_S[slots_N] += 1
        self.last_S[slots_N] = drawn.token_ids_N
        self.num_unread_S[slots_N] = 1

    def write_drafted(self, slots_N: Ints, counts_N: Ints, drawn: DrawnTokens) -> None:
        """Append `counts_N` drawn tokens to each row, row after row; the last one is unread."""
        ends_N = np.cumsum(counts_N)
        slots_D = np.repeat(slots_N, counts_N)
        places_D = np.arange(len(slots_D)) - np.repeat(ends_N - counts_N, counts_N)
        places_D += self._num_written_S[slots_D]
        self._written_ST[slots_D, places_D] = drawn.token_ids_N
        self._logprobs_ST[slots_D, places_D] = drawn.logprobs_N
        self._num_written_S[slots_N] += counts_N
        self._lengths_S[slots_N] += counts_N
        self.last_S[slots_N] = drawn.token_ids_N[ends_N - 1]
        self.num_unread_S[slots_N] = 1

    def is_full(self, slots_N: Ints) -> np.ndarray:
        """Return [N] bool: whether the action has reached `max_tokens`."""
        return self._num_written_S[slots_N] >= self._limits_S[slots_N]

    def action_ids(self, slot: int) -> list[int]:
        """Return the tokens of the action in progress."""
        return self._written_ST[slot, : self._num_written_S[slot]].tolist()

    def finish(self, slot: int, *, stopped: bool) -> Completion:
        """End the action in progress and return it."""
        self.is_sampling_S[slot] = False
        logprobs = self._logprobs_ST[slot, : self._num_written_S[slot]].tolist()
        return Completion(tuple(self.action_ids(slot)), tuple(logprobs), stopped)

    def _is_choosing(self, at: Positions) -> NDArray[np.bool_]:
        slots_N, _, drafted = at
        previous_N = self.last_S[slots_N] if drafted is None else drafted.previous_D
        is_choosing_N = previous_N == self._choose_after_S[slots_N]
        is_within_N = self._num_written_S[slots_N] > 0
        if drafted is not None:
            is_within_N |= drafted.offsets_D > 0
        return is_choosing_N & is_within_N

    def _choosing(
        self, slots_L: Ints, is_choosing_L: NDArray[np.bool_]
    ) -> tuple[tuple[KindChoice, Ints], ...]:
        if not is_choosing_L.any():
            return ()
        chosen: dict[KindChoice, list[int]] = {}
        for number in np.nonzero(is_choosing_L)[0].tolist():
            choice = self._kind_choices[slots_L[number]]
            assert choice is not None, "only rows with a kind_choice have an `after` token"
            chosen.setdefault(choice, []).append(number)
        return tuple((choice, np.array(numbers)) for choice, numbers in chosen.items())
