"""A query as a route: which lines to look up, from which names, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from espalier.knowledge import KnowledgeGraph
from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
)


@dataclass(frozen=True, slots=True)
class Arm:
    """Start at each of `names` and follow `labels`; the last line may list several values.

    Where a route leads to the start, there are no names: what it finds is where the arm begins.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    start: Route | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Walk every arm, keep what all of them share, and follow `tail` from there."""

    arms: tuple[Arm, ...]
    tail: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The line of every search, in order."""
        walked: list[str] = []
        for arm in self.arms:
            walked += arm.start.labels if arm.start else ()
            walked += arm.labels * (1 if arm.start else len(arm.names))
        return (*walked, *self.tail)


def route_of(query: Query, graph: KnowledgeGraph) -> Route:
    """The route of a chain, or of an intersection of such routes with a chain behind it.

    Raises:
        TypeError: a union of projections; it can be evaluated, but no teacher walks it.
    """
    labels: list[str] = []
    while isinstance(query, Projection):
        labels.insert(0, graph.relations[query.relation].label)
        query = query.inner
    if isinstance(query, Intersection):
        return Route(tuple(_arm(part, graph) for part in query.parts), tuple(labels))
    if isinstance(query, Constant | ConstantSet):
        ids = (query.entity_id,) if isinstance(query, Constant) else query.entity_ids
        names = tuple(graph.entities[entity_id].name for entity_id in ids)
        return Route((Arm(names, tuple(labels)),), ())
    raise TypeError(f"no route for {type(query).__name__}: no teacher walks a union of projections")


def _arm(query: Query, graph: KnowledgeGraph) -> Arm:
    """A part of an intersection; one that has an intersection inside starts where that leads."""
    route = route_of(query, graph)
    if not route.tail:
        (arm,) = route.arms
        return arm
    return Arm((), route.tail, Route(route.arms, ()))
