"""Drawing questions: families by weight, signatures evenly within a family, constants at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.quotas import apportion
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.pools import Chain, Join, chains, intersections, unions
from espalier.synthesis.webshaper.query import Query, canonical
from espalier.synthesis.webshaper.rules import broken_rule
from espalier.synthesis.webshaper.steps import Steps, TaskSplit

MAX_FAILURES = 200
"""Refused in a row, a signature counts as barren: its questions all have the same flaw."""


def family_weights(config: SynthesisConfig) -> dict[str, float]:
    """Family name -> weight: chain-1 to chain-4, intersection, union."""
    weights = {f"chain-{n}": w for n, w in enumerate(config.chain_weights, start=1)}
    return weights | {
        "intersection": config.intersection_weight,
        "union": config.union_weight,
    }


class Generator:
    """Draws fair questions of every split; no query is drawn twice, whatever its split."""

    def __init__(self, graph: KnowledgeGraph, weights: Mapping[str, float], seed: int) -> None:
        self._graph = graph
        self._seed = seed
        self._weights = {family: weight for family, weight in weights.items() if weight > 0}
        self._signatures: dict[str, Sequence[Chain | Join]] = {
            f"chain-{length}": chains(graph, length)
            for length in range(1, 5)
            if f"chain-{length}" in self._weights
        }
        self._signatures |= {"intersection": intersections(graph), "union": unions(graph)}
        self._seen: set[str] = set()

    def generate(
        self, split: TaskSplit, count: int, world: World, funnel: Funnel
    ) -> list[Candidate]:
        """Up to `count` questions in random order; fewer where the graph yields no more.

        A family that runs dry hands its share on to the others.
        """
        steps = Steps(self._graph, split)
        for reason, number in steps.excluded.items():
            funnel.count(f"{split}.excluded_before_drawing", reason, number)
        open_families = {
            family: self._drawn(family, steps, world, funnel) for family in self._weights
        }
        found: list[Candidate] = []
        while open_families and len(found) < count:
            weights = {family: self._weights[family] for family in open_families}
            for family, share in apportion(weights, count - len(found)).items():
                drawn = [c for _, c in zip(range(share), open_families[family], strict=False)]
                if len(drawn) < share:
                    del open_families[family]
                    funnel.count(f"{split}.families_run_dry", family)
                found.extend(drawn)
        random.Random(f"{self._seed}/{split}/order").shuffle(found)
        return found

    def _drawn(
        self, family: str, steps: Steps, world: World, funnel: Funnel
    ) -> Iterator[Candidate]:
        """Fair questions of a family, signatures at random, until all of them are dry."""
        rng = random.Random(f"{self._seed}/{steps.split}/{family}")
        sources = [
            self._fair(signature.queries(steps, rng), steps, world, funnel)
            for signature in self._signatures[family]
        ]
        while sources:
            position = rng.randrange(len(sources))
            candidate = next(sources[position], None)
            if candidate is not None:
                yield candidate
            else:
                sources[position] = sources[-1]
                sources.pop()

    def _fair(
        self, queries: Iterator[Query], steps: Steps, world: World, funnel: Funnel
    ) -> Iterator[Candidate]:
        failures = 0
        for query in queries:
            candidate = Candidate(query, world)
            reason = self.fault(candidate, steps)
            funnel.count(f"{steps.split}.drawn", reason or "accepted")
            if reason is None:
                failures = 0
                yield candidate
            elif (failures := failures + 1) >= MAX_FAILURES:
                funnel.count(f"{steps.split}.drawn", "signature_given_up")
                return

    def fault(self, candidate: Candidate, steps: Steps) -> str | None:
        """Why the candidate is refused; a fair one counts as drawn from now on."""
        text = canonical(candidate.query)
        if text in self._seen:
            return "drawn_before"
        reason = broken_rule(candidate) or not_of_split(candidate, steps)
        if reason is None:
            self._seen.add(text)
        return reason


def not_of_split(candidate: Candidate, steps: Steps) -> str | None:
    """Every entity of the chain belongs to the split or is a hub, and one at least is no hub."""
    if not steps.admits_all(candidate.entities):
        return "entity_of_another_split"
    if not steps.holds_own_entity(candidate.entities):
        return "hubs_only"
    return None
