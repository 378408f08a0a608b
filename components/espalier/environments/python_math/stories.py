"""Arithmetic stories: chains of operations drawn at random, kept where they are fair, and told."""

from __future__ import annotations

import random
from collections.abc import Iterator

from espalier.config import SynthesisConfig
from espalier.environments.python_math import wording
from espalier.environments.python_math.arithmetic import OPERATIONS, Chain, Change, split_of
from espalier.records import Split
from espalier.synthesis.funnel import Funnel, apportion

_START = (5, 99)
_TERM = (2, 99)
_FACTOR = (2, 9)
_GROUP = (2, 12)
_LARGEST = 9999
_DRY_AFTER = 4_000
"""Draws in a row without a new story; 3 in 100 of a split's may be left then."""


class StoryTeller:
    """Draws the chains of one split; the same ones under the same seed."""

    def __init__(self, split: Split, config: SynthesisConfig, seed: int, funnel: Funnel) -> None:
        self._split = split
        self._weights = config.chain_weights
        self._rng = random.Random(f"{seed}/{split}/stories")
        self._funnel = funnel

    def chains(self, count: int) -> Iterator[Chain]:
        """`count` chains, no two of them equal, in shares of one to four steps; fewer if dry."""
        weights = {str(steps): share for steps, share in enumerate(self._weights, start=1) if share}
        seen: set[str] = set()
        for steps, share in apportion(weights, count).items():
            found = misses = 0
            while found < share and misses < _DRY_AFTER:
                chain = self._draw(int(steps))
                reason = self._unfair(chain, seen)
                if reason:
                    misses += 1
                    self._funnel.count(f"{self._split}.refused", reason)
                    continue
                misses = 0
                seen.add(chain.canonical)
                found += 1
                yield chain
            if found < share:
                self._funnel.count(f"{self._split}.families_run_dry", f"story-{steps}")

    def _draw(self, steps: int) -> Chain:
        """A chain whose every value is a whole number above 0."""
        start = value = self._rng.randint(*_START)
        changes: list[Change] = []
        while len(changes) < steps:
            change = self._change(value)
            after = change.applied(value)
            if 0 < after <= _LARGEST and after != value:
                changes.append(change)
                value = after
        return Chain(start, tuple(changes))

    def _change(self, value: int) -> Change:
        label = self._rng.choice(tuple(OPERATIONS))
        if label == "share":
            divisors = [n for n in range(_FACTOR[0], _FACTOR[1] + 1) if value % n == 0]
            if divisors:
                return Change(label, (self._rng.choice(divisors),))
            label = "times"
        if label == "times":
            return Change(label, (self._rng.randint(*_FACTOR),))
        if OPERATIONS[label].num_numbers == 1:
            return Change(label, (self._rng.randint(*_TERM),))
        return Change(label, (self._rng.randint(*_GROUP), self._rng.randint(*_GROUP)))

    def _unfair(self, chain: Chain, seen: set[str]) -> str:
        """Why the chain is no task of this split; empty where it is one."""
        if split_of(chain) != self._split:
            return "belongs_to_another_split"
        if chain.canonical in seen:
            return "repeated"
        if chain.values[-1] in chain.values[:-1] or chain.values[-1] in chain.numbers:
            return "answer_can_be_read"  # without one step less, or without computing at all
        return ""


def told(chain: Chain, rng: random.Random) -> str:
    """The chain as a story, in words drawn from `wording`."""
    name, friend = rng.sample(wording.NAMES, 2)
    words = {"name": name, "friend": friend, "things": rng.choice(wording.THINGS)}
    sentences = [rng.choice(wording.START).format(n=chain.start, **words)]
    for change in chain.changes:
        numbers = dict(zip("ab" if len(change.numbers) == 2 else "n", change.numbers, strict=True))
        sentences.append(rng.choice(wording.CHANGES[change.label]).format(**numbers, **words))
    sentences.append(rng.choice(wording.QUESTIONS).format(**words))
    return " ".join(sentences)
