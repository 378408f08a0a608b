"""Drawing of questions: kind by weight, signature uniformly within a kind, constants at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.environments.funnel import Funnel, apportion
from espalier.records import Split
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.query import Query, canonical
from espalier_search.synthesis.webshaper.rules import broken_rule
from espalier_search.synthesis.webshaper.steps import (
    Chain,
    Join,
    Steps,
    chains,
    intersections,
    unions,
)

MAX_FAILURES = 200
"""Refusals in a row after which a signature is given up, as its questions share a flaw."""


def kind_weights(config: SynthesisConfig) -> dict[str, float]:
    """Kind of question -> weight; kinds are chain-1 to chain-4, intersection and union."""
    weights = {f"chain-{n}": w for n, w in enumerate(config.chain_weights, start=1)}
    return weights | {
        "intersection": config.intersection_weight,
        "union": config.union_weight,
    }


class Generator:
    """Draws fair questions of every split; no query is drawn twice, not even across splits."""

    def __init__(self, graph: KnowledgeGraph, weights: Mapping[str, float], seed: int) -> None:
        self._graph = graph
        self._seed = seed
        self._weights = {kind: weight for kind, weight in weights.items() if weight > 0}
        self._signatures: dict[str, Sequence[Chain | Join]] = {
            f"chain-{length}": chains(graph, length)
            for length in range(1, 5)
            if f"chain-{length}" in self._weights
        }
        self._signatures |= {"intersection": intersections(graph), "union": unions(graph)}
        self._seen: set[str] = set()

    def generate(
        self, split: Split, count: int, world: World, funnel: Funnel
    ) -> list[CandidateQuestion]:
        """Up to `count` questions in random order; fewer if the graph yields no more.

        The share of an exhausted kind goes to the other kinds.
        """
        steps = Steps(self._graph, split)
        for reason, number in steps.excluded.items():
            funnel.count(f"{split}.excluded_before_drawing", reason, number)
        open_kinds = {kind: self._drawn(kind, steps, world, funnel) for kind in self._weights}
        found: list[CandidateQuestion] = []
        while open_kinds and len(found) < count:
            weights = {kind: self._weights[kind] for kind in open_kinds}
            for kind, share in apportion(weights, count - len(found)).items():
                # range is first, so that zip stops without drawing one question too many
                drawn = [c for _, c in zip(range(share), open_kinds[kind], strict=False)]
                if len(drawn) < share:
                    del open_kinds[kind]
                    funnel.count(f"{split}.families_run_dry", kind)
                found.extend(drawn)
        random.Random(f"{self._seed}/{split}/order").shuffle(found)
        return found

    def _drawn(
        self, kind: str, steps: Steps, world: World, funnel: Funnel
    ) -> Iterator[CandidateQuestion]:
        """Fair questions of a kind, signatures at random, until all of them are exhausted."""
        rng = random.Random(f"{self._seed}/{steps.split}/{kind}")
        sources = [
            self._fair(signature.queries(steps, rng), steps, world, funnel)
            for signature in self._signatures[kind]
        ]
        while sources:
            position = rng.randrange(len(sources))
            candidate = next(sources[position], None)
            if candidate is not None:
                yield candidate
            else:  # swap before the pop: later draws depend on the order of the rest
                sources[position] = sources[-1]
                sources.pop()

    def _fair(
        self, queries: Iterator[Query], steps: Steps, world: World, funnel: Funnel
    ) -> Iterator[CandidateQuestion]:
        failures = 0
        for query in queries:
            candidate = CandidateQuestion(query, world)
            reason = self.reason_against(candidate, steps)
            funnel.count(f"{steps.split}.drawn", reason or "accepted")
            if reason is None:
                failures = 0
                yield candidate
            elif (failures := failures + 1) >= MAX_FAILURES:
                funnel.count(f"{steps.split}.drawn", "signature_given_up")
                return

    def reason_against(self, candidate: CandidateQuestion, steps: Steps) -> str | None:
        """The reason to refuse the candidate; None for a fair one, which then counts as drawn."""
        text = canonical(candidate.query)
        if text in self._seen:
            return "drawn_before"
        reason = broken_rule(candidate) or not_of_split(candidate, steps)
        if reason is None:
            self._seen.add(text)
        return reason


def not_of_split(candidate: CandidateQuestion, steps: Steps) -> str | None:
    """The reason if an entity is of another split, or all are hubs (shared by all splits)."""
    if not steps.admits_all(candidate.entities):
        return "entity_of_another_split"
    if not steps.holds_own_entity(candidate.entities):
        return "hubs_only"
    return None
