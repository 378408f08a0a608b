"""Every agent text of a run: plans, reasoning, decisions and negatives, by the profile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier.completions import Model, ModelRefusal, in_order, opened_model
from espalier.config import Profile
from espalier.dialects import syntax_of
from espalier.environments.funnel import Funnel
from espalier.records import AgentText, DataError, Task, Tracker
from espalier.records.knowledge import Document, KnowledgeGraph, load_documents
from espalier.records.trajectory import Trajectory
from espalier_search.knowledge.search import SearchTool, documents_path
from espalier_search.synthesis.agent_texts.calls import QuestionInput, plan_request
from espalier_search.synthesis.agent_texts.decisions import Decider
from espalier_search.synthesis.agent_texts.embedded import EmbeddedTeacher
from espalier_search.synthesis.agent_texts.first_order import Planner, Reasoner
from espalier_search.synthesis.agent_texts.negatives import Negatives
from espalier_search.synthesis.agent_texts.schema import Schema
from espalier_search.synthesis.rollouts import attempt_by_plan
from espalier_search.synthesis.search_wording import SEARCH_TOOL, WriteAction
from espalier_search.synthesis.webshaper.candidate import StatedTriples


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSources:
    """The inputs of agent texts, all of which training may read."""

    graph: KnowledgeGraph
    statements: StatedTriples
    documents: Sequence[Document]
    search: SearchTool
    tasks: Sequence[Task]
    demonstrations: Sequence[Trajectory]


@dataclass(slots=True)
class WrittenTexts:
    """The texts of a run, and the usage of the teacher."""

    texts: list[AgentText]
    negatives: list[AgentText]
    teacher: dict[str, object]
    """Usage by kind of call; empty for the embedded teacher, which costs nothing."""


def text_sources(
    profile: Profile,
    knowledge: Path,
    tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
) -> TextSources:
    """Load the train view of a knowledge artifact; add training tasks and demonstrations."""
    graph = KnowledgeGraph.load(knowledge)
    documents = load_documents(documents_path(knowledge, "train"))
    return TextSources(
        graph=graph,
        statements=StatedTriples.of(graph, documents, profile.knowledge),
        documents=documents,
        search=SearchTool.open(knowledge, "train", profile.search),
        tasks=tasks,
        demonstrations=demonstrations,
    )


def write_texts(
    profile: Profile, sources: TextSources, funnel: Funnel, tracker: Tracker
) -> WrittenTexts:
    """The texts that `[agent_texts]` requests, made with the teacher of `[teacher]`.

    Raises:
        DataError: texts were requested and none was kept.
        EngineError: the teacher's model cannot be used.
    """
    config = profile.agent_texts
    with tracker.progress("agent texts", config.pretraining_texts) as progress:
        texts, teacher = asyncio.run(_write(profile, sources, funnel, progress.advance))
    if config.pretraining_texts and not texts:
        raise DataError(
            f"agent_texts: none of {config.pretraining_texts} texts was kept "
            f"({funnel.as_dict()}). Request more, or check the answers of the teacher."
        )
    tasks = {task.task_id: task for task in sources.tasks}
    write = written_by(profile)
    negatives = Negatives(tasks, sources.documents, funnel, write, profile.seed, sources.statements)
    return WrittenTexts(texts, negatives.texts(sources.demonstrations, config.negatives), teacher)


def written_by(profile: Profile) -> WriteAction:
    """A function that writes actions in the dialect of the profile's policy."""
    syntax = syntax_of(profile.policy.model_dialect)
    return lambda action: syntax.write(action, (SEARCH_TOOL,))


async def _write(
    profile: Profile, sources: TextSources, funnel: Funnel, kept: Callable[[], None]
) -> tuple[list[AgentText], dict[str, object]]:
    """The texts and the teacher's usage by call; `kept` is called after each text."""
    texts: list[AgentText] = []
    async with opened_model(profile.teacher.model or _embedded(profile, sources)) as opened:
        writer = _TextWriter(profile, sources, funnel, opened.model, opened.in_flight)
        async for text in writer.texts():
            texts.append(text)
            kept()
        return texts, opened.ledger.as_dict()


def _embedded(profile: Profile, sources: TextSources) -> EmbeddedTeacher:
    schema = Schema(sources.graph, sources.documents, sources.statements)
    return EmbeddedTeacher(schema, mistake_share=profile.teacher.mistake_share, seed=profile.seed)


class _TextWriter:
    def __init__(
        self, profile: Profile, sources: TextSources, funnel: Funnel, model: Model, in_flight: int
    ) -> None:
        self._profile = profile
        self._config = profile.agent_texts
        self._sources = sources
        self._funnel = funnel
        self._model = model
        self._in_flight = in_flight
        self._write = written_by(profile)

    async def texts(self) -> AsyncGenerator[AgentText]:
        """Plans, then reasoning, then decisions."""
        planner = Planner(
            self._model, self._config, self._funnel, self._write, in_flight=self._in_flight
        )
        async for text in planner.texts(self._sources.documents, self._profile.seed):
            yield text
        documents = {document.document_id: document for document in self._sources.documents}
        reasoner = Reasoner(
            self._model, documents, self._funnel, self._write, in_flight=self._in_flight
        )
        drawn = self._drawn("reasoning")[: self._config.reasoning_tasks]
        async for text in reasoner.texts(drawn):
            yield text
        decider = Decider(
            self._model,
            self._config.alternatives,
            self._funnel,
            self._write,
            seed=self._profile.seed,
            in_flight=self._in_flight,
        )
        async for text in decider.texts(await self._attempts()):
            yield text

    async def _attempts(self) -> list[tuple[Task, Trajectory]]:
        """Failed attempts for half of the decisions, demonstrations for the rest, shuffled."""
        wanted = self._config.decisions
        failed = await self._failed(round(wanted / 2))
        tasks = {task.task_id: task for task in self._sources.tasks}
        shown = self._sources.demonstrations[: wanted - len(failed)]
        attempts = failed + [(tasks[t.task_id], t) for t in shown]
        random.Random(f"{self._profile.seed}/attempts").shuffle(attempts)
        return attempts

    async def _failed(self, count: int) -> list[tuple[Task, Trajectory]]:
        """Attempts whose plan leads to a wrong answer when followed with the real tool."""
        if not count:
            return []
        shown = {trajectory.task_id for trajectory in self._sources.demonstrations}
        tasks = (task for task in self._drawn("attempts") if task.task_id not in shown)
        attempts = in_order(self._attempt, tasks, in_flight=self._in_flight)
        failed = []
        # counted here, not in `_attempt`: the number of attempts started depends on the network
        async for task, trajectory in attempts:
            if isinstance(trajectory, ModelRefusal):
                self._funnel.count("attempts", f"plan_{trajectory.reason}")
                continue
            is_right = trajectory.reward["outcome"] > 0
            self._funnel.count("attempts", "right" if is_right else "wrong")
            if not is_right:
                failed.append((task, trajectory))
            if len(failed) == count:
                break
        await attempts.aclose()
        return failed

    async def _attempt(self, task: Task) -> tuple[Task, Trajectory | ModelRefusal]:
        plan = await self._model.answer(plan_request(QuestionInput(question=task.question)))
        if isinstance(plan, ModelRefusal):
            return task, plan
        sources = self._sources
        return task, attempt_by_plan(task, plan, sources.search, sources.statements)

    def _drawn(self, purpose: str) -> list[Task]:
        tasks = self._sources.tasks
        return random.Random(f"{self._profile.seed}/{purpose}").sample(tasks, len(tasks))
