"""What the lock-step engine knows of its rows between steps, in arrays: nothing is done row by row.

Axes: S slots, N rows of a step, T tokens of an action.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from espalier.rollout.engines.drawing import Drawn, RowSampling, uniforms
from espalier.rollout.engines.engine import Completion, KindChoice, Sampling
from espalier.rollout.engines.pages import Ints

_NO_TOKEN = -1


class RowState:
    """Sampling parameters, unread tokens, and the action in progress of every slot."""

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
        """Take all unread tokens of the slots, which are in ascending order of their number."""
        counts_N = self.num_unread_S[slots_N]
        num_single = int(np.searchsorted(counts_N, 2))
        parts = [np.array(self._unread[slot], np.int64) for slot in slots_N[num_single:].tolist()]
        self.num_unread_S[slots_N] = 0
        return np.concatenate((self._last_S[slots_N[:num_single]], *parts))

    def mark_read(self, slots_N: Ints) -> None:
        """The contexts were copied from rows that have read them."""
        self.num_unread_S[slots_N] = 0

    def sampling(self, slots_N: Ints) -> RowSampling:
        """How the next token of each slot is drawn."""
        return RowSampling(
            temperatures_N=self._temperatures_S[slots_N],
            top_p_N=self._top_p_S[slots_N],
            top_k_N=self._top_k_S[slots_N],
            uniforms_N=uniforms(self._seeds_S[slots_N], self._lengths_S[slots_N]),
            kind_choices=self._choosing(slots_N),
        )

    def write(self, slots_N: Ints, drawn: Drawn) -> None:
        """Append the drawn tokens, which are unread, to the contexts and the actions."""
        places_N = self._num_written_S[slots_N]
        self._written_ST[slots_N, places_N] = drawn.token_ids_N
        self._logprobs_ST[slots_N, places_N] = drawn.logprobs_N
        self._num_written_S[slots_N] += 1
        self._lengths_S[slots_N] += 1
        self._last_S[slots_N] = drawn.token_ids_N
        self.num_unread_S[slots_N] = 1

    def is_full(self, slots_N: Ints) -> np.ndarray:
        """[N] bool, whether the action has as many tokens as it may."""
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
            assert choice is not None, "only a row with a choice waits for its token"
            rows.setdefault(choice, []).append(row)
        return tuple((choice, np.array(numbers)) for choice, numbers in rows.items())
