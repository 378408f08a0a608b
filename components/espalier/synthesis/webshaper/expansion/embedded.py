"""The embedded expander: a `Model` that writes the agent's calls from what the tools have shown.

It searches for the leaf, lists the sub-questions that the facts allow (one fact that holds the leaf
alone; two lists that share nothing but the leaf, one of them an R-Union now and then), and submits
them in random order. It knows nothing that its own calls did not show.
"""

from __future__ import annotations

import random
from itertools import combinations

from pydantic import BaseModel

from espalier.completions import Refusal, Request
from espalier.completions.answers import AnswerT
from espalier.synthesis.webshaper.expansion.calls import (
    Action,
    Fact,
    Found,
    GiveUp,
    Growth,
    Search,
    Summarize,
    Summary,
    Validate,
    Verdict,
)
from espalier.synthesis.webshaper.formalism.terms import Named, print_term

_MAX_PAIRS = 4
_UNION_SHARE = 0.25
"""Of the pairs of lists: how many get a second constant, as an R-Union."""

Rows = tuple[tuple[str, ...], ...]
_Option = tuple[Rows, Summarize | None]
"""The entries of a sub-question, and the union that has to be seen before."""


class EmbeddedExpander:
    """Answers `expand_question`; equal requests have equal answers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`."""
        growth = request.material
        if request.answer is not Action or not isinstance(growth, Growth):
            return Refusal("refused", f"{request.call} is none of the calls that it knows")
        rng = random.Random(f"{self._seed}/{request.sample}/{growth.question}/{growth.leaf}")
        action = self._next(growth, rng)
        assert isinstance(action, request.answer), "the request asks for an action"
        return action

    def _next(self, growth: Growth, rng: random.Random) -> BaseModel:
        if not growth.turns:
            return Action(thought="find what leads there", call=Search(name=growth.leaf))
        first = growth.turns[0].result
        options = _options(first.facts if isinstance(first, Found) else (), growth.leaf, rng)
        tried = sum(isinstance(turn.result, Verdict) for turn in growth.turns)
        if tried >= len(options):
            return Action(thought="no fact is left", call=GiveUp())
        rows, union = options[tried]
        if union is not None and not isinstance(growth.turns[-1].result, Summary):
            return Action(thought="see what both hold", call=union)
        return Action(thought="this should lead there alone", call=Validate(entries=rows))


def _options(facts: tuple[Fact, ...], leaf: str, rng: random.Random) -> list[_Option]:
    """Sub-questions that the facts allow, in random order, each with the union that it needs."""
    alone = [fact for fact in facts if fact.objects == (leaf,)]
    chains: list[_Option] = [((_row(fact),), None) for fact in rng.sample(alone, len(alone))]
    joins = _joins([fact for fact in facts if len(fact.objects) > 1], leaf, rng)
    options: list[_Option] = []
    while chains or joins:
        # forms evenly: a country is held alone by hundreds of cities, and by few pairs of lists
        form = rng.choice([form for form in (chains, joins) if form])
        options.append(form.pop())
    return options


def _joins(lists: list[Fact], leaf: str, rng: random.Random) -> list[_Option]:
    """Pairs of lists that share the leaf alone, some with an R-Union on one side."""
    options: list[_Option] = []
    pairs = [
        (first, second)
        for first, second in combinations(lists, 2)
        if set(first.objects) & set(second.objects) == {leaf}
    ]
    for first, second in rng.sample(pairs, min(len(pairs), _MAX_PAIRS)):
        other = _partner(first, second, lists, leaf, rng)
        if other is None:
            options.append(((_row(first), _row(second)), None))
            continue
        names = (first.subject, other.subject)
        row = (print_term(Named(names)), first.relation, "?T")
        options.append(((row, _row(second)), Summarize(relation=first.relation, names=names)))
    return options


def _partner(
    first: Fact, second: Fact, lists: list[Fact], leaf: str, rng: random.Random
) -> Fact | None:
    """A fact to join with `first`, so that the union still shares nothing else with `second`."""
    if rng.random() >= _UNION_SHARE:
        return None
    fits = [
        fact
        for fact in lists
        if fact.relation == first.relation
        and fact.subject not in (first.subject, second.subject)
        and (set(first.objects) | set(fact.objects)) & set(second.objects) == {leaf}
    ]
    return rng.choice(fits) if fits else None


def _row(fact: Fact) -> tuple[str, ...]:
    return (print_term(Named((fact.subject,))), fact.relation, "?T")
