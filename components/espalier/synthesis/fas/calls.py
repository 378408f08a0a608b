"""The calls that agent texts are made with: what each is told, and what must come back.

A model behind an endpoint and the embedded teacher answer the very same requests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from espalier.completions import PlainText, Request

Style = Literal["retrieval", "numeric", "multi_hop", "synthesis"]
STYLES: tuple[Style, ...] = ("retrieval", "numeric", "multi_hop", "synthesis")
"""One claim; a quantity; a chain over several documents; several claims put together."""

Date = Annotated[str, StringConstraints(pattern=r"^(\d{4}(-\d{2}(-\d{2})?)?)?$")]
"""Year, month or day, as 1843, 1843-07 or 1843-07-02; empty where the text states none."""


class _Told(BaseModel):
    """What a request tells."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Answer(BaseModel):
    """What must come back, no key more."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tool(_Told):
    """A tool that the agent is offered."""

    name: str
    description: str


SEARCH = Tool(name="search", description="finds documents by their words, and shows their lines")


class DocumentTold(_Told):
    """A document to draw claims from."""

    title: str
    lines: tuple[str, ...]


class Claim(_Answer):
    """One statement about an entity."""

    entity: PlainText
    date: Date = ""
    text: PlainText


class Claims(_Answer):
    """Everything that a document states."""

    claims: tuple[Claim, ...] = Field(max_length=200)


class MemoryTold(_Told):
    """An entity and what is known of it; a question is wanted for each style."""

    entity: str
    claims: tuple[Claim, ...]
    styles: tuple[Style, ...]


class StyledQuestion(_Answer):
    """A question in one style."""

    style: Style
    question: PlainText


class Questions(_Answer):
    """Questions about one memory; a style that it does not allow is left out."""

    questions: tuple[StyledQuestion, ...] = Field(max_length=len(STYLES))


class QuestionTold(_Told):
    """A question and the tools at hand."""

    question: str
    tools: tuple[Tool, ...] = (SEARCH,)


class Plan(_Answer):
    """An analysis, and the first action that follows from it."""

    analysis: PlainText
    tool: PlainText
    query: PlainText


class PlanTold(_Told):
    """A plan to be judged: neither the right answer nor what the tool would return is told."""

    question: str
    tools: tuple[Tool, ...]
    plan: Plan


class Judgement(_Answer):
    """Whether a plan is likely to obtain what the question needs."""

    likely: bool
    reason: PlainText


class Guess(_Answer):
    """The parts of a question, and an answer without looking anything up."""

    parts: tuple[PlainText, ...] = Field(min_length=1, max_length=16)
    answer: PlainText


class KnowledgeTold(_Told):
    """A question, a first answer, and what is known about it."""

    question: str
    first_answer: str
    knowledge: tuple[str, ...]


class Refined(_Answer):
    """The answer that the knowledge supports, and how."""

    reasoning: PlainText
    answer: PlainText


class Candidate(_Answer):
    """A thought, and a search or an answer."""

    thought: PlainText
    action: Literal["search", "answer"]
    text: PlainText


class StepTold(_Told):
    """A step of an attempt: what was seen before it, and what was done."""

    question: str
    seen: tuple[str, ...]
    taken: Candidate
    count: int


class Alternatives(_Answer):
    """What else could have been done; nothing of it is executed."""

    candidates: tuple[Candidate, ...] = Field(max_length=16)


def claims_request(told: DocumentTold) -> Request[Claims]:
    """What does the document state, and about whom?"""
    return Request(
        call="draw_claims",
        instructions="List every claim of the document: the entity it is about, the date that it "
        "states, if any, and the claim as one short sentence or line. Add nothing.",
        material=told,
        answer=Claims,
    )


def questions_request(told: MemoryTold) -> Request[Questions]:
    """What could be asked about the memory?"""
    return Request(
        call="ask_questions",
        instructions="Write one question about the entity in each of the styles: retrieval (one "
        "claim), numeric (a quantity), multi_hop (follow a claim to another entity and ask about "
        "that one), synthesis (put several claims together). Each must be answerable by searching.",
        material=told,
        answer=Questions,
    )


def plan_request(told: QuestionTold, sample: int = 0) -> Request[Plan]:
    """What would an agent do first?"""
    return Request(
        call="plan_first_action",
        instructions="Analyse what has to be found out, in order, and give the first tool call. "
        "Nothing is executed.",
        material=told,
        answer=Plan,
        sample=sample,
    )


def judge_request(told: PlanTold) -> Request[Judgement]:
    """Is the plan any good?"""
    return Request(
        call="judge_plan",
        instructions="Judge whether the plan, beginning with this tool call, is likely to obtain "
        "the knowledge that the question needs. You know neither the answer nor any result.",
        material=told,
        answer=Judgement,
    )


def guess_request(told: QuestionTold) -> Request[Guess]:
    """Without tools: what are the parts, and what might the answer be?"""
    return Request(
        call="guess_answer",
        instructions="Without any tool, decompose the question into its parts and guess the "
        "answer, as a name.",
        material=told,
        answer=Guess,
    )


def refine_request(told: KnowledgeTold) -> Request[Refined]:
    """With the knowledge: what is the answer?"""
    return Request(
        call="refine_answer",
        instructions="Reason from the knowledge, step by step, to the answer of the question; give "
        "the answer as a name, as the knowledge spells it. The first answer may be wrong.",
        material=told,
        answer=Refined,
    )


def alternatives_request(told: StepTold) -> Request[Alternatives]:
    """What else could an agent do at this step?"""
    return Request(
        call="offer_alternatives",
        instructions="Give as many other actions as `count` says that an agent might take at this "
        "step instead of the one that was taken, each with its thought. Nothing is executed.",
        material=told,
        answer=Alternatives,
    )
