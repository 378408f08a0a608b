"""Grown questions of a split: seeds by random walks, kept if answered, then expanded."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

from espalier.completions import Model, in_order
from espalier.config import ExpansionConfig
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.routes import route_of
from espalier.synthesis.webshaper.candidate import Candidate, World
from espalier.synthesis.webshaper.expansion.agent import Expander
from espalier.synthesis.webshaper.expansion.tools import Tools
from espalier.synthesis.webshaper.expansion.walks import Walks
from espalier.synthesis.webshaper.generator import Generator, not_of_split
from espalier.synthesis.webshaper.query import canonical
from espalier.synthesis.webshaper.rules import broken_rule
from espalier.synthesis.webshaper.steps import Steps

_MAX_FRUITLESS = 2_000
"""Walks, or seeds, in a row that give nothing new before the source counts as dry."""

Answerable = Callable[[Candidate], bool]
"""Whether some rollout of the seed question is right."""


class Growing:
    """Draws grown questions; together with `generator` no query is drawn twice."""

    def __init__(
        self,
        model: Model,
        generator: Generator,
        config: ExpansionConfig,
        *,
        seed: int,
        in_flight: int,
    ) -> None:
        self._model = model
        self._generator = generator
        self._config = config
        self._seed = seed
        self._in_flight = in_flight

    async def questions(
        self, steps: Steps, world: World, answerable: Answerable, funnel: Funnel
    ) -> AsyncGenerator[Candidate]:
        """Questions until the walks give nothing new."""
        heading = f"{steps.split}.expansion"
        tools = Tools(steps, world, partial(self._fault, steps), self._seed)
        expander = Expander(self._model, tools, self._config, funnel, heading)
        seeds = self._seeds(steps, world, answerable, funnel)
        fruitless = 0
        async for grown in in_order(expander.grown, seeds, in_flight=self._in_flight):
            reason = "nothing_grew" if grown is None else self._generator.fault(grown, steps)
            funnel.count(f"{steps.split}.grown", reason or "accepted")
            fruitless = fruitless + 1 if reason else 0
            if grown is not None and reason is None:
                yield grown
            if fruitless >= _MAX_FRUITLESS:
                return

    def _seeds(
        self, steps: Steps, world: World, answerable: Answerable, funnel: Funnel
    ) -> Iterator[Candidate]:
        """Fair walks, each once, that a rollout answers; ends where no new one is found."""
        rng = random.Random(f"{self._seed}/{steps.split}/walks")
        seen: set[str] = set()
        fruitless = 0
        for query in Walks(steps, rng).queries(1, self._config.max_seed_hops):
            candidate = Candidate(query, world)
            text = canonical(query)
            reason = "walked_before" if text in seen else broken_rule(candidate)
            reason = reason or not_of_split(candidate, steps)
            if reason is None and not answerable(candidate):
                reason = "no_rollout_right"
            seen.add(text)
            funnel.count(f"{steps.split}.seeds", reason or "kept")
            fruitless = fruitless + 1 if reason else 0
            if reason is None:
                yield candidate
            elif fruitless >= _MAX_FRUITLESS:
                return

    def _fault(self, steps: Steps, grown: Candidate) -> str | None:
        """The rules of every question, and no more searches than an episode has turns for."""
        searches = len(route_of(grown.query, grown.world.graph).labels)
        if searches > self._config.max_searches:
            return "too_many_searches"
        return broken_rule(grown) or not_of_split(grown, steps)
