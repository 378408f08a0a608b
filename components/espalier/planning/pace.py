"""Pace of a training run whose samplers and learner are machines of their own: a simulation.

Groups of attempts start in order. Up to `max_staleness` steps' groups may be started ahead of the
step that learns from them, and a step learns from the oldest ones: those that would become too old
are waited for. With a staleness of 0 samplers and learner alternate, as they do where both are the
same machines. An attempt takes turns at the server with the fewest attempts, and holds its row
while its tool runs. Every server decodes all its rows together, one token of each at a step.

What is drawn follows measured distributions; what is not simulated: reading prompts (on an H200 as
long as three decoding steps for 128 of them), uneven machines, losses.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

_TURNS = (1,) * 2 + (2,) * 5 + (3,) * 124 + (4,) * 76 + (5,) * 46 + (6,) * 19
"""Turns of 272 attempts that the profile tiny sampled in one step of training, seed 0."""
_MEAN_TURNS = sum(_TURNS) / len(_TURNS)
_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_LENGTHS = tuple(tokens / 13.07 for tokens in (2, 7, 7, 9, 11, 16, 20, 23, 27, 30))
"""Quantiles of the action tokens of their 1,032 turns, relative to the mean."""
_CUT_AT = 8.0
"""Longest attempt, relative to the mean: a limit of tokens cuts longer ones off."""
_Z_99 = 2.326
"""The 99th percentile of a normal distribution, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samplers:
    """A pool of equal servers."""

    servers: int
    rows: int
    """Most attempts that a server plays at the same time."""
    step_s: float
    """Seconds of a decoding step without any row."""
    row_s: float = 0.0
    """Further seconds of a decoding step for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """What updates; all its machines as one."""

    update_s: float
    """Seconds of an update besides its tokens, exchanging the gradients included."""
    token_s: float
    """Seconds of an update for each token of its trajectories."""
    exchange_s: float = 0.0
    """Seconds until the samplers have new weights; meanwhile they and the learner wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """What a step samples and learns from."""

    groups: int
    group_size: int
    action_tokens: float
    """Mean of an attempt."""
    trained_tokens: float
    """Mean of an attempt, in the update."""
    tail: float = 0.0
    """Standard deviation of the logarithm of a factor of each attempt's length, whose mean is 1; 0:
    lengths are those measured, of which the longest is about twice the mean."""
    tool_s: float = 0.0
    """Median seconds of a tool call; one follows every turn but the last."""
    tool_p99_s: float = 0.0
    """Its 99th percentile; between them times are log-normal."""


class Paced(NamedTuple):
    """How fast a run goes once it is in its stride."""

    step_s: float
    """Mean seconds from one update's end to the next one's."""
    learner_waits: float
    """Share of the time in which the learner waits for attempts or for an exchange."""
    samplers_idle: float
    """Share of the tokens that the servers could decode, with all rows taken, and do not."""
    staleness: float
    """Mean number of versions between an attempt's start and its update."""
    most_staleness: int
    """The largest such number."""


def simulated(
    samplers: Samplers, learner: Learner, attempts: Attempts, *, max_staleness: int, seed: int = 0
) -> Paced:
    """Simulate three times `max_staleness` + 1 steps, and measure the last third.

    The first attempts begin together, and so end together again and again, ever less. The same
    arguments give the same result.
    """
    return _Simulation(samplers, learner, attempts, max_staleness, seed).run()


_LEAST_MEASURED = 4
"""Least number of steps that are measured."""


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    version: int
    open_attempts: int
    tokens: float = 0.0


@dataclass(slots=True, eq=False)
class _Attempt:
    group: _Group
    turns: list[float]
    """Tokens of each turn that is still to be decoded, the next one last."""
    tools_s: list[float]
    """Seconds of the tools between them, the next one last."""


@dataclass(slots=True, eq=False)
class _Server:
    open: int = 0
    """Attempts that have a row."""
    since_s: float = 0.0
    decoded: float = 0.0
    """Tokens that a row has got so far which is there from the beginning."""
    ends: list[tuple[float, int, _Attempt]] = field(
        default_factory=list[tuple[float, int, _Attempt]]
    )
    """Of each row: the value of `decoded` at which its turn ends."""
    stamp: int = 0
    """Number of the last change of its rows: earlier predictions do not count."""


class _Simulation:
    def __init__(
        self,
        samplers: Samplers,
        learner: Learner,
        attempts: Attempts,
        max_staleness: int,
        seed: int,
    ) -> None:
        self._samplers, self._learner, self._attempts = samplers, learner, attempts
        self._bound, self._dice = max_staleness, np.random.default_rng([seed, 0])
        self._tool_dice = np.random.default_rng([seed, 1])
        """Dice of their own: tools do not change the lengths."""
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._servers = [_Server() for _ in range(samplers.servers)]
        self._free = [(0, number) for number in range(samplers.servers)]
        """Heap of servers by open attempts; an entry whose number has changed does not count."""
        self._waiting: deque[_Attempt] = deque()
        self._unlearned: list[_Group] = []
        """Groups that were started, oldest first."""
        self._started = self._ended = self._version = 0
        self._learns = False
        self._ended_s: list[float] = []
        """When each update ended."""
        self._learnt_s: list[float] = []
        """Seconds of each update without its exchange."""
        self._staleness: list[float] = []
        """Mean of each update."""
        self._most_staleness = 0
        self._tokens: list[float] = []
        """Action tokens of each update."""

    def run(self) -> Paced:
        self._start_groups()
        first = 2 * (self._bound + 1)
        count = max(_LEAST_MEASURED, self._bound + 1)
        while len(self._ended_s) < first + count:
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        measured = slice(first, first + count)
        passed_s = self._ended_s[-1] - self._ended_s[first - 1]
        pool = self._samplers
        most_per_s = pool.servers * pool.rows / (pool.step_s + pool.row_s * pool.rows)
        return Paced(
            step_s=passed_s / count,
            learner_waits=1 - sum(self._learnt_s[measured]) / passed_s,
            samplers_idle=1 - sum(self._tokens[measured]) / (most_per_s * passed_s),
            staleness=sum(self._staleness[measured]) / count,
            most_staleness=self._most_staleness,
        )

    def _at(self, time_s: float, happens: Callable[[], None]) -> None:
        self._count += 1  # events of one moment happen in the order in which they were added
        heapq.heappush(self._events, (time_s, self._count, happens))

    def _start_groups(self) -> None:
        size, first = self._attempts.group_size, self._started
        self._started = (self._version + self._bound + 1) * self._attempts.groups
        groups = [_Group(number, self._version, size) for number in range(first, self._started)]
        self._unlearned.extend(groups)
        turns = self._turns(size * len(groups))
        tools = self._tools([len(tokens) - 1 for tokens in turns])
        played = (group for group in groups for _ in range(size))
        self._waiting.extend(map(_Attempt, played, turns, tools))
        self._seat()

    def _turns(self, count: int) -> list[list[float]]:
        """Tokens of each turn of `count` attempts."""
        asked, dice = self._attempts, self._dice
        mean = asked.action_tokens / _MEAN_TURNS
        factors_N = np.exp(dice.normal(-(asked.tail**2) / 2, asked.tail, count))
        counts_N = dice.choice(_TURNS, count)
        relative = np.interp(dice.random(int(counts_N.sum())), _SHARES, _LENGTHS)
        ends_N = np.cumsum(counts_N)
        sums_N = factors_N * np.add.reduceat(relative, ends_N - counts_N) / _MEAN_TURNS
        factors_N *= np.minimum(1.0, _CUT_AT / sums_N)
        tokens = np.maximum(1.0, mean * relative * np.repeat(factors_N, counts_N)).tolist()
        return [tokens[end - n : end] for end, n in zip(ends_N, counts_N, strict=True)]

    def _tools(self, counts: list[int]) -> list[list[float]]:
        """Seconds of as many tools, for each attempt."""
        median_s, p99_s = self._attempts.tool_s, self._attempts.tool_p99_s
        spread = math.log(max(p99_s / median_s, 1)) / _Z_99 if median_s else 0.0
        drawn = self._tool_dice.lognormal(0.0, spread, sum(counts)) * median_s
        seconds = iter(drawn.tolist())
        return [[next(seconds) for _ in range(count)] for count in counts]

    def _seat(self) -> None:
        """Give waiting attempts to the servers with the fewest."""
        while self._waiting and self._free:
            open_attempts, number = self._free[0]
            server = self._servers[number]
            if open_attempts != server.open:
                heapq.heappop(self._free)
                continue
            if open_attempts >= self._samplers.rows:
                return
            heapq.heapreplace(self._free, (open_attempts + 1, number))
            server.open += 1
            self._begin(number, self._waiting.popleft())

    def _begin(self, number: int, attempt: _Attempt) -> None:
        if self._samplers.row_s:
            self._decode(number, attempt)
            return
        # other rows change nothing, so the end is known
        tokens = sum(attempt.turns)
        attempt.group.tokens += tokens
        ends_s = self._now_s + tokens * self._samplers.step_s + sum(attempt.tools_s)
        self._at(ends_s, lambda: self._end_attempt(number, attempt))

    def _decode(self, number: int, attempt: _Attempt) -> None:
        server = self._servers[number]
        self._pass(server)
        self._count += 1
        ends = server.decoded + attempt.turns[-1]
        heapq.heappush(server.ends, (ends, self._count, attempt))
        self._predict(number)

    def _pass(self, server: _Server) -> None:
        """Let a server decode until now."""
        server.decoded += (self._now_s - server.since_s) / self._row_step_s(server)
        server.since_s = self._now_s

    def _row_step_s(self, server: _Server) -> float:
        return self._samplers.step_s + self._samplers.row_s * len(server.ends)

    def _predict(self, number: int) -> None:
        """Say when the server's next turn ends, if its rows stay as they are."""
        server = self._servers[number]
        server.stamp += 1
        if server.ends:
            missing = max(server.ends[0][0] - server.decoded, 0.0)
            stamp = server.stamp
            ends_s = self._now_s + missing * self._row_step_s(server)
            self._at(ends_s, lambda: self._end_turn(number, stamp))

    def _end_turn(self, number: int, stamp: int) -> None:
        server = self._servers[number]
        if stamp != server.stamp:
            return
        self._pass(server)
        _, _, attempt = heapq.heappop(server.ends)
        self._predict(number)
        attempt.group.tokens += attempt.turns.pop()
        if attempt.turns:
            self._at(self._now_s + attempt.tools_s.pop(), lambda: self._decode(number, attempt))
        else:
            self._end_attempt(number, attempt)

    def _end_attempt(self, number: int, attempt: _Attempt) -> None:
        server, group = self._servers[number], attempt.group
        server.open -= 1
        heapq.heappush(self._free, (server.open, number))
        group.open_attempts -= 1
        self._seat()
        if not group.open_attempts:
            self._ended += 1
            self._learn_if_ready()

    def _learn_if_ready(self) -> None:
        if self._learns or self._ended < self._attempts.groups:
            return
        ended = [group for group in self._unlearned if not group.open_attempts]
        taken = ended[: self._attempts.groups]
        numbers = {group.number for group in taken}
        left = [group for group in self._unlearned if group.number not in numbers]
        if not all(self._is_in_time(group, place) for place, group in enumerate(left, start=1)):
            return
        self._ended -= len(taken)
        self._unlearned = left
        self._learns = True
        scale = self._attempts.trained_tokens / self._attempts.action_tokens
        learner = self._learner
        tokens = sum(group.tokens for group in taken)
        learnt_s = learner.update_s + learner.token_s * scale * tokens
        self._tokens.append(tokens)
        ages = [self._version - group.version for group in taken]
        self._staleness.append(sum(ages) / len(ages))
        self._most_staleness = max(self._most_staleness, *ages)
        self._learnt_s.append(learnt_s)
        self._at(self._now_s + learnt_s + learner.exchange_s, self._end_update)

    def _is_in_time(self, group: _Group, place: int) -> bool:
        """Whether a step can still learn from the group when `place` other groups go before it."""
        return place <= (group.version + self._bound - self._version) * self._attempts.groups

    def _end_update(self) -> None:
        self._learns = False
        self._version += 1
        self._ended_s.append(self._now_s)
        self._start_groups()
        self._learn_if_ready()
