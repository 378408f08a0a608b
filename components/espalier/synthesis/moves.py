"""One move of a solver: a thought, and a search or an answer; and how the embedded one moves."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from espalier.completions import Model, PlainText, Refusal, Request
from espalier.completions.answers import AnswerT
from espalier.synthesis import plans
from espalier.synthesis.attempts import MAX_SEARCHES, NOTHING_READ, line_values
from espalier.synthesis.fas.calls import QuestionTold, plan_request

SEARCH: Literal["search"] = "search"
ANSWER: Literal["answer"] = "answer"


class Seen(BaseModel, frozen=True):
    """A search that was made, and what it showed."""

    query: str
    observation: str


class EpisodeTold(BaseModel, frozen=True):
    """What a solver knows when it moves: the words of the question, and its own searches."""

    question: str
    seen: tuple[Seen, ...] = ()


class Move(BaseModel, frozen=True, extra="forbid"):
    """A thought and a call; the name of the tool is the solver's own, known or not."""

    thought: PlainText
    tool: PlainText
    argument: PlainText


def move_request(told: EpisodeTold, sample: int) -> Request[Move]:
    """What is the next move?"""
    return Request(
        call="solve_question",
        instructions="Answer the question from what the tool shows, step by step. tool is "
        '"search", with the query as its argument, or "answer", with the answer alone. Search for '
        "one line of one document at a time; answer with a name that an observation shows.",
        material=told,
        answer=Move,
        sample=sample,
    )


class EmbeddedSolver:
    """A `Model` for `solve_question`: it plans with the embedded teacher and follows the plan.

    The plan goes wrong as often as the teacher's mistakes say; the search tool decides the rest.
    """

    def __init__(self, planner: Model) -> None:
        self._planner = planner

    async def answer(self, request: Request[AnswerT]) -> AnswerT | Refusal:
        """See `Model`."""
        told = request.material
        if request.answer is not Move or not isinstance(told, EpisodeTold):
            return Refusal("refused", f"{request.call} is none of the calls that it knows")
        wanted = plan_request(QuestionTold(question=told.question), request.sample)
        plan = await self._planner.answer(wanted)
        if isinstance(plan, Refusal):
            return plan
        labels = plan.analysis.split(plans.LABEL_SEPARATOR)[:MAX_SEARCHES]
        move = _next_move(told, labels, plan.query)
        assert isinstance(move, request.answer), "the request asks for a move"
        return move


def _next_move(told: EpisodeTold, labels: list[str], first_query: str) -> BaseModel:
    answer = NOTHING_READ
    for number, seen in enumerate(told.seen):
        found = line_values(seen.observation, labels[number])
        if not found:
            return Move(thought=plans.ready_to_answer(), tool=ANSWER, argument=answer)
        answer = found[0]
    position = len(told.seen)
    if position == len(labels):
        return Move(thought=plans.ready_to_answer(), tool=ANSWER, argument=answer)
    query = plans.search_query(answer, labels[position]) if position else first_query
    thought = plans.remaining_hops(labels[position:])
    return Move(thought=thought, tool=SEARCH, argument=query)
