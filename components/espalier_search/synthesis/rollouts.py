"""Attempts at a question with the real search tool, by a plan or move by move with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from pydantic import BaseModel

from espalier.completions import Model, ModelRefusal, PlainText, Request, opened_model
from espalier.completions.request import AnswerT
from espalier.config import Profile
from espalier.environments.demonstrations import UNANSWERED, UNKNOWN_TOOL, Rejected, reason_against
from espalier.environments.funnel import Funnel
from espalier.records import Task
from espalier.records.folding import folded_name
from espalier.records.knowledge import Document, KnowledgeGraph
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.agent_texts.calls import Plan, QuestionInput, plan_request
from espalier_search.synthesis.agent_texts.embedded import EmbeddedTeacher
from espalier_search.synthesis.agent_texts.schema import Schema
from espalier_search.synthesis.search_wording import (
    LABEL_SEPARATOR,
    READY_TO_ANSWER,
    VALUE_SEPARATOR,
    remaining_hops,
    search_query,
    shown_hits,
)
from espalier_search.synthesis.teacher import TeacherEpisode
from espalier_search.synthesis.webshaper.candidate import StatedTriples

MAX_SEARCHES = 6
"""Limit for a plan: a longer one is followed up to here and then answered."""

NOTHING_READ = "unknown"


def attempt_by_plan(
    task: Task, plan: Plan, search: SearchTool, statements: StatedTriples | None = None
) -> Trajectory:
    """The trajectory of a plan: each value read goes into the next search, the last is the answer.

    If a line is not shown, the attempt ends with the value read before it. The outcome in the
    trajectory's reward is verified, 1.0 or 0.0. In prose `statements` tell what is read.
    """
    episode = TeacherEpisode(task, search)
    labels = plan.analysis.split(LABEL_SEPARATOR)[:MAX_SEARCHES]
    query, answer = plan.query, NOTHING_READ
    for number, label in enumerate(labels):
        observation = episode.search(remaining_hops(labels[number:]), query)
        found = line_values(observation, label, statements)
        if not found:
            break
        answer = found[0]
        if number + 1 < len(labels):
            query = search_query(answer, labels[number + 1])
    outcome = float(exact_match(answer, task.verifier.gold))
    return episode.answered(answer, outcome=outcome)


def line_values(
    observation: str, label: str, statements: StatedTriples | None = None
) -> tuple[str, ...]:
    """Values of the first line with this label in any hit; labels are compared folded.

    Of a hit in prose, the objects that its sentences state by `statements`.
    """
    wanted = folded_name(label)
    for hit in shown_hits(observation):
        for line in hit.lines:
            shown, separator, listed = line.partition(": ")
            if separator and folded_name(shown) == wanted:
                return tuple(listed.split(VALUE_SEPARATOR))
        stated = statements.facts(hit.title, hit.lines) if statements else {}
        for said, names in stated.items():
            if folded_name(said) == wanted:
                return tuple(names)
    return ()


SEARCH: Literal["search"] = "search"
ANSWER: Literal["answer"] = "answer"


class MadeSearch(BaseModel, frozen=True):
    """A search that was made, and its observation."""

    query: str
    observation: str


class EpisodeInput(BaseModel, frozen=True):
    """What a solver is told before a move: the question, and its own searches so far."""

    question: str
    seen: tuple[MadeSearch, ...] = ()


class Move(BaseModel, frozen=True, extra="forbid"):
    """A thought and a call; the name of the tool is the solver's own, known or not."""

    thought: PlainText
    tool: PlainText
    argument: PlainText


def move_request(told: EpisodeInput, sample: int) -> Request[Move]:
    """Ask for the next move."""
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
    """A `Model` for `solve_question` that plans with the embedded teacher and follows the plan.

    Its plans contain mistakes as often as the teacher's do.
    """

    def __init__(self, planner: Model, statements: StatedTriples | None = None) -> None:
        self._planner = planner
        self._statements = statements

    async def answer(self, request: Request[AnswerT]) -> AnswerT | ModelRefusal:
        """Answer with the next move of the episode."""
        told = request.material
        if request.answer is not Move or not isinstance(told, EpisodeInput):
            return ModelRefusal("refused", f"{request.call} is none of the calls that it knows")
        wanted = plan_request(QuestionInput(question=told.question), request.sample)
        plan = await self._planner.answer(wanted)
        if isinstance(plan, ModelRefusal):
            return plan
        labels = plan.analysis.split(LABEL_SEPARATOR)[:MAX_SEARCHES]
        move = _next_move(told, labels, plan.query, self._statements)
        assert isinstance(move, request.answer), "the request asks for a move"
        return move


def _next_move(
    told: EpisodeInput, labels: list[str], first_query: str, statements: StatedTriples | None
) -> BaseModel:
    answer = NOTHING_READ
    for number, seen in enumerate(told.seen):
        found = line_values(seen.observation, labels[number], statements)
        if not found:
            return Move(thought=READY_TO_ANSWER, tool=ANSWER, argument=answer)
        answer = found[0]
    position = len(told.seen)
    if position == len(labels):
        return Move(thought=READY_TO_ANSWER, tool=ANSWER, argument=answer)
    query = search_query(answer, labels[position]) if position else first_query
    thought = remaining_hops(labels[position:])
    return Move(thought=thought, tool=SEARCH, argument=query)


class Rollouts:
    """Makes `rollouts` concurrent attempts at a task and takes the first acceptable one."""

    def __init__(
        self, model: Model, search: SearchTool, funnel: Funnel, *, rollouts: int, max_turns: int
    ) -> None:
        self._model = model
        self._search = search
        self._funnel = funnel
        self._rollouts = rollouts
        self._max_turns = max_turns

    async def demonstrate(self, task: Task) -> Trajectory | Rejected:
        """A right attempt without hallucination or repetition; refused attempts are counted."""
        attempts = (self._attempt(task, sample) for sample in range(self._rollouts))
        kept: list[Trajectory] = []
        for attempt in await asyncio.gather(*attempts):
            reason = (
                attempt.reason if isinstance(attempt, Rejected) else reason_against(attempt, task)
            )
            self._funnel.count("rollouts", reason or "kept")
            if reason is None and isinstance(attempt, Trajectory):
                kept.append(attempt)
        return kept[0] if kept else Rejected("no_rollout_kept")

    async def _attempt(self, task: Task, sample: int) -> Trajectory | Rejected:
        episode = TeacherEpisode(task, self._search)
        told = EpisodeInput(question=task.question)
        for _ in range(self._max_turns):
            move = await self._model.answer(move_request(told, sample))
            if isinstance(move, ModelRefusal):
                return Rejected(f"model_{move.reason}")
            if move.tool == ANSWER:
                return episode.answered(move.argument)
            if move.tool != SEARCH:
                return Rejected(UNKNOWN_TOOL)
            observation = episode.search(move.thought, move.argument)
            seen = MadeSearch(query=move.argument, observation=observation)
            told = told.model_copy(update={"seen": (*told.seen, seen)})
        return Rejected(UNANSWERED)


Demonstrate = Callable[[Task], Trajectory | Rejected]


@contextmanager
def rollout_teacher(
    profile: Profile,
    graph: KnowledgeGraph,
    documents: list[Document],
    search: SearchTool,
    funnel: Funnel,
    statements: StatedTriples | None = None,
) -> Generator[Demonstrate]:
    """A function that demonstrates tasks by rollouts of `[teacher]`'s model and waits for them."""
    teacher = profile.teacher
    with asyncio.Runner() as runner:
        schema = Schema(graph, documents, statements)
        opening = opened_model(teacher.model or _embedded_solver(profile, schema, statements))
        # entered by hand: the caller's block is not async, and the runner has to outlive each call
        opened = runner.run(opening.__aenter__())
        rollouts = Rollouts(
            opened.model,
            search,
            funnel,
            rollouts=profile.synthesis.rollouts,
            max_turns=profile.episode.max_turns,
        )
        try:
            yield lambda task: runner.run(rollouts.demonstrate(task))
        finally:
            runner.run(opening.__aexit__(None, None, None))
            for call, usage in opened.ledger.as_dict().items():
                funnel.remark(f"{call}: {usage}")


def _embedded_solver(
    profile: Profile, schema: Schema, statements: StatedTriples | None
) -> EmbeddedSolver:
    share = profile.teacher.mistake_share
    teacher = EmbeddedTeacher(schema, mistake_share=share, seed=profile.seed)
    return EmbeddedSolver(teacher, statements)
