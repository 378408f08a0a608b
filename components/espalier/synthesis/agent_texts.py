"""Every agent text of a run: plans, reasoning, decisions and negatives, as the profile asks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from espalier.completions import Ledger, Model, Refusal, in_order, opened_model
from espalier.config import Profile
from espalier.dialects import SYNTAXES, chosen_dialect
from espalier.knowledge import Document, KnowledgeGraph
from espalier.knowledge.documents import load_documents
from espalier.knowledge.search import SearchTool, documents_path
from espalier.records import AgentText, DataError, Task, Tracker
from espalier.records.trajectory import Trajectory
from espalier.synthesis import plans
from espalier.synthesis.attempts import carried_out
from espalier.synthesis.fas.calls import QuestionTold, plan_request
from espalier.synthesis.fas.embedded import EmbeddedTeacher
from espalier.synthesis.fas.planning import Planner
from espalier.synthesis.fas.reasoning import Reasoner
from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.has import Decider
from espalier.synthesis.negatives import Negatives

_EMBEDDED_IN_FLIGHT = 1
"""The embedded teacher never waits: more at a time would only take memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What agent texts are made from: training may read all of it."""

    graph: KnowledgeGraph
    documents: Sequence[Document]
    search: SearchTool
    tasks: Sequence[Task]
    demonstrations: Sequence[Trajectory]


@dataclass(slots=True)
class Written:
    """The texts of a run, and what asking for them cost."""

    texts: list[AgentText]
    negatives: list[AgentText]
    teacher: dict[str, object]
    """Call -> usage; empty for the embedded teacher, which costs nothing."""


def material_of(
    profile: Profile,
    knowledge: Path,
    tasks: Sequence[Task],
    demonstrations: Sequence[Trajectory],
) -> Material:
    """The train view of a knowledge artifact, beside its training tasks and demonstrations."""
    return Material(
        graph=KnowledgeGraph.load(knowledge),
        documents=load_documents(documents_path(knowledge, "train")),
        search=SearchTool.open(knowledge, "train", profile.search),
        tasks=tasks,
        demonstrations=demonstrations,
    )


def write_texts(profile: Profile, material: Material, funnel: Funnel, tracker: Tracker) -> Written:
    """Make what `[agent_texts]` asks for, with the teacher of `[teacher]`.

    Raises:
        DataError: texts were asked for and not one was kept.
        EngineError: the teacher's model cannot be used.
    """
    config = profile.agent_texts
    with tracker.progress("agent texts", config.pretraining_texts) as progress:
        texts, teacher = asyncio.run(_session(profile, material, funnel, progress.advance))
    if config.pretraining_texts and not texts:
        raise DataError(
            f"agent_texts: not one of {config.pretraining_texts} texts was kept "
            f"({funnel.as_dict()}). Ask for more, or check the answers of the teacher."
        )
    tasks = {task.task_id: task for task in material.tasks}
    write = written_by(profile)
    negatives = Negatives(tasks, material.documents, funnel, write, profile.seed)
    return Written(texts, negatives.texts(material.demonstrations, config.negatives), teacher)


def written_by(profile: Profile) -> plans.Write:
    """Spells actions in the dialect of the profile's policy."""
    syntax = SYNTAXES[chosen_dialect(profile.policy.dialect, profile.policy.model)]
    return lambda action: syntax.write(action, (plans.SEARCH,))


async def _session(
    profile: Profile, material: Material, funnel: Funnel, kept: Callable[[], None]
) -> tuple[list[AgentText], dict[str, object]]:
    texts: list[AgentText] = []
    async with _opened(profile, material) as (model, in_flight, ledger):
        writer = _Writer(profile, material, funnel, model, in_flight)
        async for text in writer.texts():
            texts.append(text)
            kept()
        usage = ledger.as_dict() if ledger else {}
    return texts, usage


@asynccontextmanager
async def _opened(
    profile: Profile, material: Material
) -> AsyncGenerator[tuple[Model, int, Ledger | None]]:
    config = profile.teacher
    if config.model is not None:
        async with opened_model(config.model) as opened:
            yield opened
    else:
        schema = Schema(material.graph, material.documents)
        teacher = EmbeddedTeacher(schema, mistake_share=config.mistake_share, seed=profile.seed)
        yield teacher, _EMBEDDED_IN_FLIGHT, None


class _Writer:
    def __init__(
        self, profile: Profile, material: Material, funnel: Funnel, model: Model, in_flight: int
    ) -> None:
        self._profile = profile
        self._config = profile.agent_texts
        self._material = material
        self._funnel = funnel
        self._model = model
        self._in_flight = in_flight
        self._write = written_by(profile)

    async def texts(self) -> AsyncGenerator[AgentText]:
        """Plans, then reasoning, then decisions."""
        planner = Planner(
            self._model, self._config, self._funnel, self._write, in_flight=self._in_flight
        )
        async for text in planner.texts(self._material.documents, self._profile.seed):
            yield text
        documents = {document.document_id: document for document in self._material.documents}
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
        """Failed attempts up to their share, and demonstrations for the rest, shuffled."""
        wanted = self._config.decisions
        failed = await self._failed(round(wanted * self._config.failed_share))
        tasks = {task.task_id: task for task in self._material.tasks}
        shown = self._material.demonstrations[: wanted - len(failed)]
        attempts = failed + [(tasks[t.task_id], t) for t in shown]
        random.Random(f"{self._profile.seed}/attempts").shuffle(attempts)
        return attempts

    async def _failed(self, count: int) -> list[tuple[Task, Trajectory]]:
        """Attempts whose plan, carried out by the real tool, leads to a wrong answer."""
        if not count:
            return []
        shown = {trajectory.task_id for trajectory in self._material.demonstrations}
        tasks = (task for task in self._drawn("attempts") if task.task_id not in shown)
        attempts = in_order(self._attempt, tasks, in_flight=self._in_flight)
        failed = []
        # counted here and not in `_attempt`: what is begun and not needed depends on the network
        async for task, trajectory in attempts:
            if isinstance(trajectory, Refusal):
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

    async def _attempt(self, task: Task) -> tuple[Task, Trajectory | Refusal]:
        plan = await self._model.answer(plan_request(QuestionTold(question=task.question)))
        if isinstance(plan, Refusal):
            return task, plan
        return task, carried_out(task, plan, self._material.search)

    def _drawn(self, purpose: str) -> list[Task]:
        tasks = self._material.tasks
        return random.Random(f"{self._profile.seed}/{purpose}").sample(tasks, len(tasks))
