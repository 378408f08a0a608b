"""Poses questions after others: same pattern, other entities, or one hop more or less.

WebRL's questions come after failed ones; R-Zero's challenger starts from any pattern of training,
and from those most often that have earned most.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from espalier.records import Task
from espalier.synthesis.evolution.patterns import Pattern, Patterns
from espalier.synthesis.evolution.proving import Prover
from espalier.synthesis.self_play import Order, Posed, weight_of
from espalier.synthesis.webshaper.query import Query

_DRAWS_PER_TASK = 40
"""Proposals that may be refused before a phase is content with fewer tasks: of a fair pattern one
in two or three is accepted, of a barren one none."""


Beginnings = Callable[[Order, random.Random], Iterator[str]]
"""Signatures to begin from, without end; none where an order leaves nothing to begin from."""


def failed_patterns(order: Order, rng: random.Random) -> Iterator[str]:
    """Those of failed tasks, as often as they failed."""
    while order.failed:
        yield rng.choice(order.failed).metadata.pattern


def rewarding_patterns(order: Order, rng: random.Random) -> Iterator[str]:
    """Those of known tasks, each as often as its tasks earned."""
    kinds = list(dict.fromkeys(task.metadata.pattern for task in order.known))
    weights = [weight_of([order.earned[k]] if k in order.earned else []) for k in kinds]
    while kinds:
        yield rng.choices(kinds, weights)[0]


class GraphPoser:
    """Draws new questions over the graph; a `PosesTasks`."""

    def __init__(self, prover: Prover, beginnings: Beginnings) -> None:
        self._prover = prover
        self._beginnings = beginnings
        self._patterns = Patterns(prover.graph)

    def pose(self, order: Order) -> Posed:
        """See `PosesTasks`."""
        return proven_of(self._drawn(order), order, self._prover)

    def _drawn(self, order: Order) -> Iterator[Query | str]:
        """Queries after where they begin, or why there is none after one of them."""
        rng = random.Random(order.seed)
        sources: dict[Pattern, Iterator[Query]] = {}
        draws = order.num_tasks * _DRAWS_PER_TASK
        for signature in islice(self._beginnings(order, rng), draws):
            pattern = self._patterns.of(signature)
            if pattern is None:
                yield "pattern_of_another_shape"
                continue
            variations = self._patterns.variations(pattern)
            chosen = rng.choice(variations[rng.choice(list(variations))])
            if chosen not in sources:
                draw = random.Random(rng.getrandbits(48))
                sources[chosen] = chosen.queries(self._prover.steps, draw)
            query = next(sources[chosen], None)
            if query is not None:  # a pattern may run dry while others go on
                yield query


def proven_of(proposals: Iterable[Query | str], order: Order, prover: Prover) -> Posed:
    """The first tasks of `proposals` that can be proven, as many as the order counts.

    Args:
        proposals: queries, or reasons why a proposal is none.
        order: how many, and what is known already.
        prover: of the queries.
    """
    refused: Counter[str] = Counter()
    asked = {str(task.extra.get("query", "")) for task in order.known}
    tasks: list[Task] = []
    for proposal in proposals:
        found = proposal if isinstance(proposal, str) else prover.proven(proposal, asked)
        if isinstance(found, str):
            refused[found] += 1
            continue
        asked.add(str(found.extra["query"]))
        tasks.append(found)
        if len(tasks) == order.num_tasks:
            break
    return Posed(tasks, refused)
