"""Requests to a model for agent texts, and the types of its answers.

An endpoint and the embedded teacher answer the same requests. Class names and docstrings of the
answers (`Claims` to `Alternatives`, with the types of their fields) are part of the JSON schema
sent to a model and of the key under which its answer is cached: a change invalidates the cache.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from espalier.completions import PlainText, Request, StrictModel

Style = Literal["retrieval", "numeric", "multi_hop", "synthesis"]
STYLES: tuple[Style, ...] = ("retrieval", "numeric", "multi_hop", "synthesis")
"""Styles of a question: about one claim, a quantity, a chain over several documents, or several
claims together."""

Date = Annotated[str, StringConstraints(pattern=r"^(\d{4}(-\d{2}(-\d{2})?)?)?$")]
"""A year, month or day: 1843, 1843-07 or 1843-07-02; "" if the text states none."""


class OfferedTool(StrictModel):
    """A tool offered to the agent."""

    name: str
    description: str


SEARCH = OfferedTool(
    name="search", description="finds documents by their words, and shows their lines"
)


class DocumentInput(StrictModel):
    """A document to draw claims from."""

    title: str
    lines: tuple[str, ...]


class Claim(StrictModel):
    """One statement about an entity."""

    entity: PlainText
    date: Date = ""
    text: PlainText


class Claims(StrictModel):
    """Everything that a document states."""

    claims: tuple[Claim, ...] = Field(max_length=200)


class MemoryInput(StrictModel):
    """An entity with its claims, and the styles to write questions in."""

    entity: str
    claims: tuple[Claim, ...]
    styles: tuple[Style, ...]


class StyledQuestion(StrictModel):
    """A question in one style."""

    style: Style
    question: PlainText


class Questions(StrictModel):
    """Questions about one memory; a style that it does not allow is left out."""

    questions: tuple[StyledQuestion, ...] = Field(max_length=len(STYLES))


class QuestionInput(StrictModel):
    """A question and the offered tools."""

    question: str
    tools: tuple[OfferedTool, ...] = (SEARCH,)


class Plan(StrictModel):
    """An analysis, and the first action that follows from it."""

    analysis: PlainText
    tool: PlainText
    query: PlainText


class PlanInput(StrictModel):
    """A plan to be judged, without the right answer and without results of the tool."""

    question: str
    tools: tuple[OfferedTool, ...]
    plan: Plan


class Judgement(StrictModel):
    """Whether a plan is likely to obtain what the question needs."""

    likely: bool
    reason: PlainText


class Guess(StrictModel):
    """The parts of a question, and an answer without looking anything up."""

    parts: tuple[PlainText, ...] = Field(min_length=1, max_length=16)
    answer: PlainText


class KnowledgeInput(StrictModel):
    """A question, a first answer, and knowledge about it."""

    question: str
    first_answer: str
    knowledge: tuple[str, ...]


class Refined(StrictModel):
    """The answer that the knowledge supports, and how."""

    reasoning: PlainText
    answer: PlainText


class Candidate(StrictModel):
    """A thought, and a search or an answer."""

    thought: PlainText
    action: Literal["search", "answer"]
    text: PlainText


class StepInput(StrictModel):
    """A step of an attempt: earlier observations, the action taken, alternatives wanted."""

    question: str
    seen: tuple[str, ...]
    taken: Candidate
    count: int


class Alternatives(StrictModel):
    """What else could have been done; nothing of it is executed."""

    candidates: tuple[Candidate, ...] = Field(max_length=16)


def claims_request(told: DocumentInput) -> Request[Claims]:
    """A request for the claims of a document."""
    return Request(
        call="draw_claims",
        instructions="List every claim of the document: the entity it is about, the date that it "
        "states, if any, and the claim as one short sentence or line. Add nothing.",
        material=told,
        answer=Claims,
    )


def questions_request(told: MemoryInput) -> Request[Questions]:
    """A request for questions about a memory."""
    return Request(
        call="ask_questions",
        instructions="Write one question about the entity in each of the styles: retrieval (one "
        "claim), numeric (a quantity), multi_hop (follow a claim to another entity and ask about "
        "that one), synthesis (put several claims together). Each must be answerable by searching.",
        material=told,
        answer=Questions,
    )


def plan_request(told: QuestionInput, sample: int = 0) -> Request[Plan]:
    """A request for an analysis and the first action."""
    return Request(
        call="plan_first_action",
        instructions="Analyse what has to be found out, in order, and give the first tool call. "
        "Nothing is executed.",
        material=told,
        answer=Plan,
        sample=sample,
    )


def judge_request(told: PlanInput) -> Request[Judgement]:
    """A request to judge whether a plan is likely to succeed."""
    return Request(
        call="judge_plan",
        instructions="Judge whether the plan, beginning with this tool call, is likely to obtain "
        "the knowledge that the question needs. You know neither the answer nor any result.",
        material=told,
        answer=Judgement,
    )


def guess_request(told: QuestionInput) -> Request[Guess]:
    """A request for the parts of a question and a guess, without tools."""
    return Request(
        call="guess_answer",
        instructions="Without any tool, decompose the question into its parts and guess the "
        "answer, as a name.",
        material=told,
        answer=Guess,
    )


def refine_request(told: KnowledgeInput) -> Request[Refined]:
    """A request for the answer that the knowledge supports."""
    return Request(
        call="refine_answer",
        instructions="Reason from the knowledge, step by step, to the answer of the question; give "
        "the answer as a name, as the knowledge spells it. The first answer may be wrong.",
        material=told,
        answer=Refined,
    )


def alternatives_request(told: StepInput) -> Request[Alternatives]:
    """A request for other actions at a step."""
    return Request(
        call="offer_alternatives",
        instructions="Give as many other actions as `count` says that an agent might take at this "
        "step instead of the one that was taken, each with its thought. Nothing is executed.",
        material=told,
        answer=Alternatives,
    )


_ADAPTER = TypeAdapter(PlainText)


def plain_text(text: str) -> str:
    """`text` as `PlainText`; "" if it contains tags or is too long."""
    try:
        return _ADAPTER.validate_python(text)
    except ValidationError:
        return ""
