"""What the expander agent is told, and the calls that it may write: search, summarize, validate.

Material and answers are pydantic models: whichever model answers, what it writes is read by type,
strictly, and every name in it is looked up before it counts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from espalier.completions import PlainText, Request

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


class Found(BaseModel, frozen=True):
    """What `search` shows; nothing for a name that the knowledge base lacks."""

    facts: tuple[Fact, ...]


class Summary(BaseModel, frozen=True):
    """What `summarize` shows; cut short where there is too much."""

    objects: tuple[str, ...]


class Verdict(BaseModel, frozen=True):
    """What `validate` says."""

    accepted: bool
    reason: str = ""


class Turn(BaseModel, frozen=True):
    """An action and its result."""

    action: Action
    result: Found | Summary | Verdict


class RelationTold(BaseModel, frozen=True):
    """A relation with the kinds of entity that it leads from and to."""

    name: str
    subject_kind: str
    object_kind: str


class Growth(BaseModel, frozen=True):
    """Everything that the agent knows when it acts."""

    question: tuple[tuple[str, str, str], ...]
    leaf: str
    leaf_kind: str
    relations: tuple[RelationTold, ...]
    turns: tuple[Turn, ...] = ()


def action_request(growth: Growth, sample: int) -> Request[Action]:
    """Ask for the next action."""
    return Request(
        call="expand_question",
        instructions=INSTRUCTIONS,
        material=growth,
        answer=Action,
        sample=sample,
    )
