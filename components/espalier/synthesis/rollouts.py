"""Attempts of a model at a question, through the real tool; one that stands up is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from espalier.completions import Model, Refusal, opened_model
from espalier.config import Profile
from espalier.knowledge import Document, KnowledgeGraph
from espalier.knowledge.search import SearchTool
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.synthesis.episode import TeacherEpisode
from espalier.synthesis.fas.embedded import EmbeddedTeacher
from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.moves import (
    ANSWER,
    SEARCH,
    EmbeddedSolver,
    EpisodeTold,
    Seen,
    move_request,
)
from espalier.synthesis.rejection import UNANSWERED, UNKNOWN_TOOL, Rejected, reason_against

_HEADING = "rollouts"


class Rollouts:
    """`rollouts` attempts at a task, side by side; the first that stands up demonstrates it."""

    def __init__(
        self, model: Model, search: SearchTool, funnel: Funnel, *, rollouts: int, max_turns: int
    ) -> None:
        self._model = model
        self._search = search
        self._funnel = funnel
        self._rollouts = rollouts
        self._max_turns = max_turns

    async def demonstrated(self, task: Task) -> Trajectory | Rejected:
        """A right attempt without hallucination or repetition; every refused one is counted."""
        attempts = (self._attempt(task, sample) for sample in range(self._rollouts))
        kept: list[Trajectory] = []
        for attempt in await asyncio.gather(*attempts):
            reason = (
                attempt.reason if isinstance(attempt, Rejected) else reason_against(attempt, task)
            )
            self._funnel.count(_HEADING, reason or "kept")
            if reason is None and isinstance(attempt, Trajectory):
                kept.append(attempt)
        return kept[0] if kept else Rejected("no_rollout_kept")

    async def _attempt(self, task: Task, sample: int) -> Trajectory | Rejected:
        episode = TeacherEpisode(task, self._search)
        told = EpisodeTold(question=task.question)
        for _ in range(self._max_turns):
            move = await self._model.answer(move_request(told, sample))
            if isinstance(move, Refusal):
                return Rejected(f"model_{move.reason}")
            if move.tool == ANSWER:
                return episode.answered(move.argument)
            if move.tool != SEARCH:
                return Rejected(UNKNOWN_TOOL)
            observation = episode.search(move.thought, move.argument)
            seen = Seen(query=move.argument, observation=observation)
            told = told.model_copy(update={"seen": (*told.seen, seen)})
        return Rejected(UNANSWERED)


class RolloutTeacher:
    """Demonstrations by rollouts, for a caller that waits for each."""

    def __init__(self, rollouts: Rollouts, runner: asyncio.Runner) -> None:
        self._rollouts = rollouts
        self._runner = runner

    def demonstrate(self, task: Task) -> Trajectory | Rejected:
        """A kept attempt at the task, or the reason why there is none."""
        return self._runner.run(self._rollouts.demonstrated(task))


@contextmanager
def rollout_teacher(
    profile: Profile,
    graph: KnowledgeGraph,
    documents: list[Document],
    search: SearchTool,
    funnel: Funnel,
) -> Generator[RolloutTeacher]:
    """The model of `[teacher]` at work; the embedded one makes its mistakes."""
    settings = profile.teacher
    limits = {"rollouts": profile.synthesis.rollouts, "max_turns": profile.episode.max_turns}
    with asyncio.Runner() as runner:
        if settings.model is None:
            schema = Schema(graph, documents)
            share = settings.mistake_share
            planner = EmbeddedTeacher(schema, mistake_share=share, seed=profile.seed)
            model = EmbeddedSolver(planner)
            yield RolloutTeacher(Rollouts(model, search, funnel, **limits), runner)
            return
        opening = opened_model(settings.model)
        opened = runner.run(opening.__aenter__())
        try:
            yield RolloutTeacher(Rollouts(opened.model, search, funnel, **limits), runner)
        finally:
            runner.run(opening.__aexit__(None, None, None))
            for call, usage in opened.ledger.as_dict().items():
                funnel.remark(f"{call}: {usage}")
