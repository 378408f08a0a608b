"""Seed questions: random walks over a split's steps, each the chain of projections it followed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

from espalier.synthesis.webshaper.pools import project
from espalier.synthesis.webshaper.query import Constant, Query
from espalier.synthesis.webshaper.steps import Steps, inverse_pairs


class Walks:
    """Walks along steps with a single object, none turning back the way it came."""

    def __init__(self, steps: Steps, rng: random.Random) -> None:
        self._steps = steps
        self._rng = rng
        self._inverses = inverse_pairs(steps.graph)
        entities = steps.graph.entities
        self._starts: dict[str, dict[str, None]] = defaultdict(dict)
        """Kind -> entities that some step leads on from."""
        self._relations: dict[str, list[str]] = defaultdict(list)
        for name, step in steps.single.items():
            self._relations[steps.graph.relations[name].subject_kind].append(name)
            for subject in step:
                self._starts[entities[subject].kind][subject] = None
        self._kinds = [(kind, list(found)) for kind, found in sorted(self._starts.items())]

    def queries(self, min_length: int, max_length: int) -> Iterator[Query]:
        """Walks without end, repeats included; none where no step leads anywhere."""
        while self._kinds:
            # kinds evenly: nine of ten entities are cities, and would make every question
            _, starts = self._rng.choice(self._kinds)
            start = self._rng.choice(starts)
            path = self._path(start, self._rng.randint(min_length, max_length))
            if len(path) >= min_length:
                yield project(tuple(path), Constant(start))

    def _path(self, start: str, length: int) -> list[str]:
        path: list[str] = []
        entity = start
        while len(path) < length:
            kind = self._steps.graph.entities[entity].kind
            onward = [
                name
                for name in self._relations[kind]
                if entity in self._steps.single[name]
                and not (path and (path[-1], name) in self._inverses)
            ]
            if not onward:
                break
            path.append(self._rng.choice(onward))
            entity = self._steps.single[path[-1]][entity]
        return path
