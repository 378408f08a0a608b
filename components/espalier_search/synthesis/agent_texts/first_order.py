"""First-order action synthesis (FAS): plans for questions, and answers from given knowledge.

Planning: questions about an entity's memory, each with an analysis and a first action, which is not
executed. A judge, without the answer and without results, keeps the plans that are likely to obtain
the needed knowledge (AgentFounder, arXiv:2509.13310, drops 43.5 % of them).

Reasoning: step one decomposes a question and guesses without tools (A1); step two gets the
knowledge and refines the answer (A2). A text is kept iff A2 is the gold answer, which is given to
neither step.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from espalier.completions import Model, ModelRefusal, in_order
from espalier.config import AgentTextsConfig
from espalier.environments.funnel import Funnel
from espalier.records import AgentText, FinalAnswer, Message, Task
from espalier.records.folding import folded_name, is_named_in
from espalier.records.knowledge import Document
from espalier.rewards.answers import exact_match
from espalier_search.synthesis.agent_texts.calls import (
    STYLES,
    Claim,
    DocumentInput,
    Guess,
    KnowledgeInput,
    MemoryInput,
    PlanInput,
    QuestionInput,
    StyledQuestion,
    claims_request,
    guess_request,
    judge_request,
    plan_request,
    questions_request,
    refine_request,
)
from espalier_search.synthesis.search_wording import (
    HIT_SEPARATOR,
    LABEL_SEPARATOR,
    LINE_SEPARATOR,
    WriteAction,
    search_call,
)
from espalier_search.synthesis.task_making import evidence_of

_DATE = re.compile(r"\b(1[0-9]{3}|20[0-9]{2})(?:-(0[1-9]|1[0-2])(?:-(0[1-9]|[12]\d|3[01]))?)?\b")

_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class EntityMemory:
    """The claims about one entity: undated ones first, then the others, oldest first."""

    entity: str
    claims: list[Claim] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Ids of the documents that the claims were drawn from."""


class EntityMemories:
    """Memories by folded name, in the order of their first claims."""

    def __init__(self) -> None:
        self._by_name: dict[str, EntityMemory] = {}

    def add(self, document: Document, claims: Iterable[Claim]) -> None:
        """Add the claims of a document to the memories of their entities, without repeats."""
        for claim in claims:
            memory = self._by_name.setdefault(folded_name(claim.entity), EntityMemory(claim.entity))
            if all(claim.text != known.text for known in memory.claims):
                memory.claims.append(claim)
            if document.document_id not in memory.sources:
                memory.sources.append(document.document_id)

    def all(self) -> list[EntityMemory]:
        """All memories, with their claims sorted by date."""
        for memory in self._by_name.values():
            memory.claims.sort(key=lambda claim: claim.date)
        return list(self._by_name.values())


def unsupported(claim: Claim, document: Document) -> bool:
    """Whether the document lacks the entity's name, the year, or a number of the claim."""
    text = " ".join((document.title, *document.lines))
    if not is_named_in(claim.entity, text):
        return True
    return not set(_NUMBER.findall(f"{claim.date[:4]} {claim.text}")) <= set(_NUMBER.findall(text))


def date_in(line: str) -> str:
    """The first date in a line: 1843, 1843-07 or 1843-07-02; "" if there is none."""
    found = _DATE.search(line)
    return found[0] if found else ""


PLANNING = "planning"


class Planner:
    """Turns documents into judged plans."""

    def __init__(
        self,
        model: Model,
        config: AgentTextsConfig,
        funnel: Funnel,
        write: WriteAction,
        *,
        in_flight: int,
    ) -> None:
        """Create a planner.

        Args:
            model: extracts claims, asks questions, plans and judges.
            config: numbers of memories and questions.
            funnel: counts kept and refused plans.
            write: writes actions in the policy's dialect.
            in_flight: documents and memories worked on at a time.
        """
        self._write = write
        self._model = model
        self._config = config
        self._funnel = funnel
        self._in_flight = in_flight

    async def texts(self, documents: Sequence[Document], seed: int) -> AsyncGenerator[AgentText]:
        """The kept plans about up to `memories` entities, drawn from the documents."""
        rng = random.Random(f"{seed}/memories")
        drawn = rng.sample(documents, min(len(documents), self._config.memories))
        memories = EntityMemories()
        async for document, claims in in_order(self._claims, drawn, in_flight=self._in_flight):
            memories.add(document, claims)
        met = memories.all()[: self._config.memories]
        self._funnel.count(PLANNING, "memories", len(met))
        async for kept in in_order(self._plans_about, met, in_flight=self._in_flight):
            for text in kept:
                yield text

    async def _claims(self, document: Document) -> tuple[Document, list[Claim]]:
        told = DocumentInput(title=document.title, lines=document.lines)
        answer = await self._model.answer(claims_request(told))
        if isinstance(answer, ModelRefusal):
            self._funnel.count(PLANNING, f"claims_{answer.reason}")
            return document, []
        supported = [claim for claim in answer.claims if not unsupported(claim, document)]
        if dropped := len(answer.claims) - len(supported):
            self._funnel.count(PLANNING, "claims_unsupported", dropped)
        return document, supported

    async def _plans_about(self, memory: EntityMemory) -> list[AgentText]:
        styles = STYLES[: self._config.questions_per_memory]
        told = MemoryInput(entity=memory.entity, claims=tuple(memory.claims), styles=styles)
        answer = await self._model.answer(questions_request(told))
        if isinstance(answer, ModelRefusal):
            self._funnel.count(PLANNING, f"questions_{answer.reason}")
            return []
        asked: dict[str, StyledQuestion] = {}
        for question in answer.questions:
            if question.style in styles and question.style not in asked:
                asked[question.style] = question
            else:
                self._funnel.count(PLANNING, "style_not_asked_for")
        texts = [await self._plan(question, memory) for question in asked.values()]
        return [text for text in texts if text is not None]

    async def _plan(self, question: StyledQuestion, memory: EntityMemory) -> AgentText | None:
        told = QuestionInput(question=question.question)
        plan = await self._model.answer(plan_request(told))
        if isinstance(plan, ModelRefusal):
            self._funnel.count(PLANNING, f"plan_{plan.reason}")
            return None
        if plan.tool not in {tool.name for tool in told.tools}:
            self._funnel.count(PLANNING, "tool_not_offered")
            return None
        judged = PlanInput(question=told.question, tools=told.tools, plan=plan)
        judgement = await self._model.answer(judge_request(judged))
        if isinstance(judgement, ModelRefusal) or not judgement.likely:
            self._funnel.count(PLANNING, "judged_unlikely")
            return None
        self._funnel.count(PLANNING, "kept")
        action = self._write(search_call(plan.analysis, plan.query))
        digest = hashlib.sha256(f"{told.question}\t{action}".encode()).hexdigest()
        return AgentText(
            text_id=f"planning-{digest[:12]}",
            kind="planning",
            style=question.style,
            prompt=(Message(role="user", content=told.question),),
            pieces=(Message(role="assistant", content=action),),
            sources=tuple(memory.sources),
        )


REASONING = "reasoning"


class Reasoner:
    """Turns training tasks and the documents they need into reasoning texts."""

    def __init__(
        self,
        model: Model,
        documents: Mapping[str, Document],
        funnel: Funnel,
        write: WriteAction,
        *,
        in_flight: int,
    ) -> None:
        """Create a reasoner.

        Args:
            model: guesses and refines.
            documents: documents that training may read, by id.
            funnel: counts kept texts, and the others by reason.
            write: writes actions in the policy's dialect.
            in_flight: tasks worked on at a time.
        """
        self._model = model
        self._write = write
        self._documents = documents
        self._funnel = funnel
        self._in_flight = in_flight

    async def texts(self, tasks: Iterable[Task]) -> AsyncGenerator[AgentText]:
        """The texts of the tasks whose refined answer is right."""
        async for text in in_order(self._reasoning_text, tasks, in_flight=self._in_flight):
            if text is not None:
                yield text

    async def _reasoning_text(self, task: Task) -> AgentText | None:
        knowledge = [self._documents[d] for d in evidence_of(task) if d in self._documents]
        if not knowledge or len(knowledge) < len(evidence_of(task)):
            self._funnel.count(REASONING, "evidence_not_visible")
            return None
        guess = await self._model.answer(guess_request(QuestionInput(question=task.question)))
        if isinstance(guess, ModelRefusal):
            self._funnel.count(REASONING, f"guess_{guess.reason}")
            return None
        shown = tuple(LINE_SEPARATOR.join((d.title, *d.lines)) for d in knowledge)
        told = KnowledgeInput(question=task.question, first_answer=guess.answer, knowledge=shown)
        refined = await self._model.answer(refine_request(told))
        if isinstance(refined, ModelRefusal):
            self._funnel.count(REASONING, f"refine_{refined.reason}")
            return None
        if not exact_match(refined.answer, task.verifier.gold):
            self._funnel.count(REASONING, "wrong_answer")
            return None
        self._funnel.count(REASONING, "kept")
        self._funnel.count(
            REASONING, "guess_was_right", int(exact_match(guess.answer, [refined.answer]))
        )
        return _text(
            task, guess, shown, self._write(FinalAnswer(refined.answer, refined.reasoning))
        )


def _text(task: Task, guess: Guess, shown: tuple[str, ...], answer: str) -> AgentText:
    thought = f"<think> {LABEL_SEPARATOR.join(guess.parts)} , maybe {guess.answer} </think>"
    return AgentText(
        text_id=f"reasoning-{task.task_id}",
        kind="reasoning",
        style=str(task.extra.get("kind", "")),
        prompt=task.prompt,
        pieces=(
            Message(role="assistant", content=thought),
            Message(role="tool", content=HIT_SEPARATOR.join(shown)),
            Message(role="assistant", content=answer),
        ),
        task_id=task.task_id,
        sources=evidence_of(task),
    )
