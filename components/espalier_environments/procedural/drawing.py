"""Draws the tasks of a split from the mixture of generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.environments.family import dealt_split, make_task
from espalier.records import DataError, Split, Task
from espalier_environments.procedural.config import ProceduralConfig
from espalier_environments.procedural.generators import Generators, Item, Knobs

_BATCH = 100
"""Number of items requested at a time."""
_DRAWS_PER_TASK = 60
"""Draws per requested task, after which a generator with few questions at a level gives fewer
tasks."""
UNTOLD = "(any solution)"
"""Gold answer of items whose generator reveals none; no scorer accepts it."""
_PLACES_PER_SEED = 100_000_000


class Level(NamedTuple):
    """A generator at one level."""

    generator: str
    number: int
    """Number of the level, from 1."""
    knobs: Knobs


class _Source:
    """The distinct items of a level, drawn as they are needed and shared by the splits."""

    def __init__(self, level: Level, generators: Generators, first: int) -> None:
        self._level = level
        self._generators = generators
        self._first = first
        self._drawn: list[tuple[int, Item]] = []
        self._seen: set[str] = set()
        self._draws = 0

    def items(self, most_draws: int) -> Iterator[tuple[int, Item]]:
        """Yield places and items from the beginning, drawing at most `most_draws` places."""
        number = 0
        while True:
            while number < len(self._drawn):
                yield self._drawn[number]
                number += 1
            if self._draws >= most_draws:
                return
            self._draw()

    def _draw(self) -> None:
        start = self._first + self._draws
        places = range(start, start + _BATCH)
        found = self._generators.items(self._level.generator, self._level.knobs, places)
        self._draws += _BATCH
        for place, item in zip(places, found, strict=True):
            if item.question not in self._seen:
                self._seen.add(item.question)
                self._drawn.append((place, item))


class Drawing:
    """The tasks of every split, the same ones for the same settings.

    The digest of a question decides its split, whatever level or seed it came from.
    """

    def __init__(
        self, config: ProceduralConfig, splits: SplitsConfig, generators: Generators
    ) -> None:
        self._splits = splits
        self._generators = generators
        self._seed = config.seed
        self._weights = [one.weight for one in config.generators]
        start = config.seed * _PLACES_PER_SEED
        self._sources: list[list[tuple[Level, _Source]]] = []
        for one in config.generators:
            knobs = generators.levels(one.name, one.curriculum) if one.curriculum else one.levels
            levels = [Level(one.name, number, own) for number, own in enumerate(knobs, start=1)]
            self._sources.append([(level, _Source(level, generators, start)) for level in levels])

    def tasks(self, split: Split, count: int) -> list[Task]:
        """Return up to `count` tasks in random order, in proportion to the weights.

        Raises:
            DataError: a generator has no task in the split, or refuses its parameters.
        """
        found: list[Task] = []
        for share, sources in zip(shares(self._weights, count), self._sources, strict=True):
            seen: set[str] = set()
            for wanted, (level, source) in zip(
                shares([1.0] * len(sources), share), sources, strict=True
            ):
                found += self._of_level(level, source, split, wanted, seen)
        random.Random(f"{self._seed} {split}").shuffle(found)
        return found

    def _of_level(
        self, level: Level, source: _Source, split: Split, wanted: int, seen: set[str]
    ) -> list[Task]:
        found: list[Task] = []
        if not wanted:
            return found
        for place, item in source.items(1000 + wanted * _DRAWS_PER_TASK):
            key = f"{level.generator}\t{item.question}"
            if key in seen or dealt_split(key, self._splits) != split:
                continue
            seen.add(key)  # an easier level may have asked it
            found.append(_task(level, place, item, split, key))
            if len(found) == wanted:
                break
        if not found:
            raise DataError(
                f"{level.generator}, level {level.number}: no question of the split {split} "
                f"that no easier level asks; there are too few with the knobs {dict(level.knobs)}"
            )
        return found


def shares(weights: list[float], count: int) -> list[int]:
    """Divide `count` into whole parts proportional to `weights`; largest remainders round up."""
    exact = [weight * count / sum(weights) for weight in weights]
    parts = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda place: parts[place] - exact[place])
    for place in by_remainder[: count - sum(parts)]:
        parts[place] += 1
    return parts


def _task(level: Level, place: int, item: Item, split: Split, key: str) -> Task:
    return make_task(
        "procedural",
        item.question.strip(),
        gold=(item.gold or UNTOLD,),
        split=split,
        source="reasoning-gym",
        key=key,
        kind="reasoning_gym",
        arguments={
            "generator": level.generator,
            "knobs": dict(level.knobs),
            "place": place,
            "question": item.question,
        },
        metadata={
            "difficulty": float(level.number),
            "pattern": level.generator,
            "extra": {"kind": level.generator, "level": level.number},
        },
    )
