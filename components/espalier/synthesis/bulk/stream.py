"""The questions of one part, in an order that its seed decides and that can be wound forward.

Unlike the generator of a run, nothing here remembers the questions made: a chain is drawn once by
construction, and only joins, of which there are thousands and not millions, are remembered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from espalier.records import ArtifactError
from espalier.synthesis.bulk.journal import Event
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.generator import MAX_FAILURES, not_of_split
from espalier.synthesis.webshaper.pools import Chain, Join
from espalier.synthesis.webshaper.query import Query, canonical
from espalier.synthesis.webshaper.rules import broken_rule
from espalier.synthesis.webshaper.steps import Steps


class _Source:
    """The queries of one signature, as far as they are drawn."""

    def __init__(self, signature: Chain | Join, queries: Iterator[Query]) -> None:
        self.queries = queries
        self.seen: set[str] | None = set() if isinstance(signature, Join) else None
        """Canonical texts of the accepted joins; a chain's queries never repeat."""


class QuestionStream:
    """Draws a family by weight, a signature of it evenly, then its next fair query."""

    def __init__(
        self,
        signatures: Mapping[str, Sequence[Chain | Join]],
        weights: Mapping[str, float],
        steps: Steps,
        world: World,
        seed: str,
    ) -> None:
        self._steps = steps
        self._world = world
        self._weights = weights
        self._rng = random.Random(f"{seed}/signatures")
        self._open = {
            family: [
                _Source(signature, signature.queries(steps, random.Random(f"{seed}/{signature}")))
                for signature in found
            ]
            for family, found in signatures.items()
            if weights.get(family, 0) > 0 and found
        }

    def replay(self, event: Event) -> None:
        """Take an event of an earlier process as it was, without judging anew.

        Raises:
            ArtifactError: more draws than the signature has queries.
        """
        family, source = self._chosen()
        query: Query | None = None
        for _ in range(event.draws):
            query = next(source.queries, None)
        if event.draws and query is None:
            raise ArtifactError("a journal that this profile and knowledge did not write")
        if not event.accepted:
            self._close(family, source)
        elif query is not None and source.seen is not None:
            source.seen.add(canonical(query))

    def events(self) -> Iterator[tuple[Event, Candidate | None]]:
        """Every fair question, and every signature that ends without one more."""
        while self._open:
            family, source = self._chosen()
            draws, candidate = self._next_fair(source)
            if candidate is None:
                self._close(family, source)
            yield Event(draws, candidate is not None), candidate

    def _next_fair(self, source: _Source) -> tuple[int, Candidate | None]:
        """Draws up to the next fair question; no question where the signature ends or is barren."""
        draws = 0
        for query in source.queries:
            draws += 1
            candidate = Candidate(query, self._world)
            if self._is_fair(candidate, source):
                return draws, candidate
            if draws >= MAX_FAILURES:
                break
        return draws, None

    def _is_fair(self, candidate: Candidate, source: _Source) -> bool:
        text = canonical(candidate.query) if source.seen is not None else ""
        if source.seen is not None and text in source.seen:
            return False
        if broken_rule(candidate) or not_of_split(candidate, self._steps):
            return False
        if source.seen is not None:
            source.seen.add(text)
        return True

    def _chosen(self) -> tuple[str, _Source]:
        families = list(self._open)
        weights = [self._weights[family] for family in families]
        (family,) = self._rng.choices(families, weights)
        return family, self._rng.choice(self._open[family])

    def _close(self, family: str, source: _Source) -> None:
        sources = self._open[family]
        sources.remove(source)
        if not sources:
            del self._open[family]
