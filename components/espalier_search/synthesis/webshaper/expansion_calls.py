"""Requests to the expander agent, the calls it may write, and an embedded model that writes them.

Material and answers are pydantic models: the text of any model is validated strictly, and every
name in it is looked up before it counts.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from espalier.completions import ModelRefusal, PlainText, Request
from espalier.completions.request import AnswerT
from espalier_search.synthesis.webshaper.notation import Named, print_term

Text = Annotated[str, Field(max_length=200)]

INSTRUCTIONS = (
    "You grow a question about a knowledge base. A question is a list of entries [X, relation, S]: "
    "V@name is a variable, C@name an entity that the question names, C@{name | name} a set of "
    "such entities, ?T what is asked for; the relation leads from X to S. You are given the "
    "question so far and one of its constants, the leaf. Write a sub-question whose only answer is "
    "the leaf and that does not name it; it will take the leaf's place. Work in steps: `search` "
    "shows facts that lead to an entity; `summarize` shows what a relation holds for a set of "
    "entities (an R-Union); `validate` submits the entries of a sub-question, its target ?T "
    "standing for the leaf, and either accepts it or says why not. No entry may join two "
    "constants. `give_up` ends the attempt. Reply with one thought and one call."
)


class Search(BaseModel, frozen=True, extra="forbid"):
    """Show facts whose objects include the entity."""

    tool: Literal["search"] = "search"
    name: PlainText


class Summarize(BaseModel, frozen=True, extra="forbid"):
    """Show what the relation holds for a set of entities: the R-Union R({a, b})."""

    tool: Literal["summarize"] = "summarize"
    relation: PlainText
    names: tuple[PlainText, ...] = Field(min_length=2, max_length=4)


class Validate(BaseModel, frozen=True, extra="forbid"):
    """Submit a sub-question."""

    tool: Literal["validate"] = "validate"
    entries: tuple[tuple[Text, ...], ...] = Field(max_length=12)


class GiveUp(BaseModel, frozen=True, extra="forbid"):
    """Leave the leaf as it is."""

    tool: Literal["give_up"] = "give_up"


class Action(BaseModel, frozen=True, extra="forbid"):
    """One turn of the agent."""

    thought: PlainText
    call: Annotated[Search | Summarize | Validate | GiveUp, Field(discriminator="tool")]


class Fact(BaseModel, frozen=True):
    """A line that lists the entity, whole: alone, or beside others."""

    subject: str
    relation: str
    objects: tuple[str, ...]


class FoundFacts(BaseModel, frozen=True):
    """What `search` shows; nothing for a name that the knowledge base lacks."""

    facts: tuple[Fact, ...]


class UnionMembers(BaseModel, frozen=True):
    """What `summarize` shows; cut short where there is too much."""

    objects: tuple[str, ...]


class SubQuestionVerdict(BaseModel, frozen=True):
    """What `validate` says."""

    accepted: bool
    reason: str = ""


class ExpanderTurn(BaseModel, frozen=True):
    """An action and its result."""

    action: Action
    result: FoundFacts | UnionMembers | SubQuestionVerdict


class RelationInput(BaseModel, frozen=True):
    """A relation with the kinds of entity that it leads from and to."""

    name: str
    subject_kind: str
    object_kind: str


class ExpansionState(BaseModel, frozen=True):
    """Everything that the agent knows when it acts."""

    question: tuple[tuple[str, str, str], ...]
    leaf: str
    leaf_kind: str
    relations: tuple[RelationInput, ...]
    turns: tuple[ExpanderTurn, ...] = ()


def action_request(growth: ExpansionState, sample: int) -> Request[Action]:
    """A request for the next action."""
    return Request(
        call="expand_question",
        instructions=INSTRUCTIONS,
        material=growth,
        answer=Action,
        sample=sample,
    )


_MAX_PAIRS = 4
_UNION_SHARE = 0.25
"""Share of the pairs of lists that get a second constant, as an R-Union."""

Rows = tuple[tuple[str, ...], ...]
_Option = tuple[Rows, Summarize | None]
"""The entries of a sub-question, and the `summarize` call to make before submitting it."""


class EmbeddedExpander:
    """An embedded `Model` for `expand_question`: deterministic, no network.

    It searches for the leaf, lists the sub-questions that the facts allow (one fact with the leaf
    as its only object; two lists that share only the leaf, sometimes with an R-Union on one side),
    and submits them in random order. It uses only facts that its own calls have shown.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Answer with the expander's next action."""
        growth = request.material
        if request.answer is not Action or not isinstance(growth, ExpansionState):
            return ModelRefusal("refused", f"{request.call} is none of the calls that it knows")
        rng = random.Random(f"{self._seed}/{request.sample}/{growth.question}/{growth.leaf}")
        action = self._next(growth, rng)
        assert isinstance(action, request.answer), "the request asks for an action"
        return action

    def _next(self, growth: ExpansionState, rng: random.Random) -> BaseModel:
        if not growth.turns:
            return Action(thought="find what leads there", call=Search(name=growth.leaf))
        first = growth.turns[0].result
        options = _options(first.facts if isinstance(first, FoundFacts) else (), growth.leaf, rng)
        tried = sum(isinstance(turn.result, SubQuestionVerdict) for turn in growth.turns)
        if tried >= len(options):
            return Action(thought="no fact is left", call=GiveUp())
        rows, union = options[tried]
        if union is not None and not isinstance(growth.turns[-1].result, UnionMembers):
            return Action(thought="see what both hold", call=union)
        return Action(thought="this should lead there alone", call=Validate(entries=rows))


def _options(facts: tuple[Fact, ...], leaf: str, rng: random.Random) -> list[_Option]:
    """Sub-questions that the facts allow, in random order, with the union call each one needs."""
    alone = [fact for fact in facts if fact.objects == (leaf,)]
    chains: list[_Option] = [((_row(fact),), None) for fact in rng.sample(alone, len(alone))]
    joins = _joins([fact for fact in facts if len(fact.objects) > 1], leaf, rng)
    options: list[_Option] = []
    while chains or joins:
        # draw the form first: a country is the only object of hundreds of facts about cities, but
        # few pairs of lists share it, so a uniform draw would hardly ever try a join
        form = rng.choice([form for form in (chains, joins) if form])
        options.append(form.pop())
    return options


def _joins(lists: list[Fact], leaf: str, rng: random.Random) -> list[_Option]:
    """Pairs of lists that share only the leaf, some with an R-Union on one side."""
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
    """A fact to unite with `first` such that the union shares only the leaf with `second`."""
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
