"""The lock-step engine: every live row advances by one token a step, sampled or forced.

A prompt shared by the rows of a group is read once; observation tokens are forced into the cache
that the policy already has, so no token is ever forwarded twice; log-probs are recorded as the
tokens are drawn; dead rows leave the cache when too few are alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from espalier.rollout.engines.decoder import Decoder


class Row(Protocol):
    """One episode, seen as a stream of tokens."""

    prompt_ids: tuple[int, ...]

    def forced_token(self) -> int | None:
        """The next token that is not the policy's choice, or None where the policy chooses."""
        ...

    def sampled(self, token_id: int, logprob: float) -> None:
        """The policy chose `token_id`."""
        ...

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 takes the most likely one."""

    temperature: float
    generator: torch.Generator


@dataclass(slots=True)
class EngineCounters:
    """Tokens forwarded (a prompt of a group counted once), and tokens sampled."""

    forwarded: int = 0
    sampled: int = 0


class LockstepEngine:
    """Plays rows to their end on one decoder."""

    def __init__(self, decoder: Decoder, *, compact_below: float, pad_id: int) -> None:
        self._decoder = decoder
        self._compact_below = compact_below
        self._pad_id = pad_id
        self.counters = EngineCounters()

    def play(self, rows: Sequence[Row], sampling: Sampling, *, max_tokens: int) -> None:
        """Advance all rows until each is done.

        Args:
            rows: at most as many as the cache may hold; rows with equal prompts share one prefill.
            sampling: temperature and the generator that makes the draw repeatable.
            max_tokens: upper bound of a row's length, which the cache reserves.
        """
        hidden_BH = self._prefill(rows, max_tokens)
        slots: list[Row | None] = list(rows)
        while True:
            next_ids = self._next_tokens(slots, hidden_BH, sampling)
            slots = [row if row is not None and not row.done else None for row in slots]
            live = [index for index, row in enumerate(slots) if row is not None]
            if not live:
                return
            if len(live) < self._compact_below * len(slots):
                self._decoder.keep(torch.tensor(live))
                slots = [slots[index] for index in live]
                next_ids = [next_ids[index] for index in live]
            hidden_BH = self._decoder.advance(torch.tensor(next_ids))
            self.counters.forwarded += len(next_ids)

    def _prefill(self, rows: Sequence[Row], max_tokens: int) -> Tensor:
        """Read the part of the prompts that all rows have: one forward over the distinct ones."""
        shared = min(len(row.prompt_ids) for row in rows)
        distinct = list(dict.fromkeys(row.prompt_ids[:shared] for row in rows))
        number = {prefix: index for index, prefix in enumerate(distinct)}
        owners = torch.tensor([number[row.prompt_ids[:shared]] for row in rows])
        for row in rows:
            for _ in range(shared):
                row.forced_token()
        self.counters.forwarded += len(distinct) * shared
        return self._decoder.start(torch.tensor(distinct), rows=owners, max_tokens=max_tokens)

    def _next_tokens(
        self, slots: Sequence[Row | None], hidden_BH: Tensor, sampling: Sampling
    ) -> list[int]:
        next_ids = [self._pad_id] * len(slots)
        choosing = []
        for index, row in enumerate(slots):
            if row is None:
                continue
            forced = row.forced_token()
            if forced is None:
                choosing.append((index, row))
            else:
                next_ids[index] = forced
        if choosing:
            at = torch.tensor([index for index, _ in choosing])
            token_ids, logprobs = draw(self._decoder.logits(hidden_BH[at]), sampling)
            self.counters.sampled += len(choosing)
            for (index, row), token_id, logprob in zip(choosing, token_ids, logprobs, strict=True):
                row.sampled(token_id, logprob)
                next_ids[index] = token_id
        return next_ids


def draw(logits_NV: Tensor, sampling: Sampling) -> tuple[list[int], list[float]]:
    """Draw one token a row and return it with its log-prob under the sampling distribution (nats).

    At temperature 0 the log-prob is that of temperature 1: a greedy choice has probability one,
    which tells nothing.
    """
    if sampling.temperature == 0:
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        chosen_N = logits_NV.argmax(dim=-1)
    else:
        logprobs_NV = torch.log_softmax(logits_NV / sampling.temperature, dim=-1)
        # Gumbel's trick: one pass instead of multinomial's sort, and repeatable by the generator
        noise_NV = torch.rand(logits_NV.shape, generator=sampling.generator).clamp_min_(1e-20)
        chosen_N = (logprobs_NV - (-noise_NV.log()).log()).argmax(dim=-1)
    chosen_logprobs_N = logprobs_NV.gather(1, chosen_N[:, None]).squeeze(1)
    return chosen_N.tolist(), chosen_logprobs_N.tolist()
