"""Planning actions: questions about memories, each with an analysis and a first action.

Nothing is executed: a judge that knows neither the answer nor any result keeps the plans that are
likely to obtain what is needed (AgentFounder, arXiv:2509.13310, drops 43.5 % of them).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncGenerator, Sequence

from espalier.completions import Model, Refusal, in_order
from espalier.config import AgentTextsConfig
from espalier.knowledge import Document
from espalier.records import AgentText, Message
from espalier.synthesis import plans
from espalier.synthesis.fas.calls import (
    STYLES,
    Claim,
    DocumentTold,
    MemoryTold,
    PlanTold,
    QuestionTold,
    StyledQuestion,
    claims_request,
    judge_request,
    plan_request,
    questions_request,
)
from espalier.synthesis.fas.memory import Memories, Memory, unsupported
from espalier.synthesis.funnel import Funnel

HEADING = "planning"


class Planner:
    """Turns documents into judged plans."""

    def __init__(
        self,
        model: Model,
        config: AgentTextsConfig,
        funnel: Funnel,
        write: plans.Write,
        *,
        in_flight: int,
    ) -> None:
        """Set up; `write` spells actions in the policy's dialect."""
        self._write = write
        self._model = model
        self._config = config
        self._funnel = funnel
        self._in_flight = in_flight

    async def texts(self, documents: Sequence[Document], seed: int) -> AsyncGenerator[AgentText]:
        """The kept plans about up to `memories` entities, drawn from the documents."""
        rng = random.Random(f"{seed}/memories")
        drawn = rng.sample(documents, min(len(documents), self._config.memories))
        memories = Memories()
        async for document, claims in in_order(self._claims, drawn, in_flight=self._in_flight):
            memories.add(document, claims)
        met = memories.all()[: self._config.memories]
        self._funnel.count(HEADING, "memories", len(met))
        async for kept in in_order(self._about, met, in_flight=self._in_flight):
            for text in kept:
                yield text

    async def _claims(self, document: Document) -> tuple[Document, list[Claim]]:
        told = DocumentTold(title=document.title, lines=document.lines)
        answer = await self._model.answer(claims_request(told))
        if isinstance(answer, Refusal):
            self._funnel.count(HEADING, f"claims_{answer.reason}")
            return document, []
        supported = [claim for claim in answer.claims if not unsupported(claim, document)]
        if dropped := len(answer.claims) - len(supported):
            self._funnel.count(HEADING, "claims_unsupported", dropped)
        return document, supported

    async def _about(self, memory: Memory) -> list[AgentText]:
        styles = STYLES[: self._config.questions_per_memory]
        told = MemoryTold(entity=memory.entity, claims=tuple(memory.claims), styles=styles)
        answer = await self._model.answer(questions_request(told))
        if isinstance(answer, Refusal):
            self._funnel.count(HEADING, f"questions_{answer.reason}")
            return []
        asked: dict[str, StyledQuestion] = {}
        for question in answer.questions:
            if question.style in styles and question.style not in asked:
                asked[question.style] = question
            else:
                self._funnel.count(HEADING, "style_not_asked_for")
        texts = [await self._planned(question, memory) for question in asked.values()]
        return [text for text in texts if text is not None]

    async def _planned(self, question: StyledQuestion, memory: Memory) -> AgentText | None:
        told = QuestionTold(question=question.question)
        plan = await self._model.answer(plan_request(told))
        if isinstance(plan, Refusal):
            self._funnel.count(HEADING, f"plan_{plan.reason}")
            return None
        if plan.tool not in {tool.name for tool in told.tools}:
            self._funnel.count(HEADING, "tool_not_offered")
            return None
        judged = PlanTold(question=told.question, tools=told.tools, plan=plan)
        judgement = await self._model.answer(judge_request(judged))
        if isinstance(judgement, Refusal) or not judgement.likely:
            self._funnel.count(HEADING, "judged_unlikely")
            return None
        self._funnel.count(HEADING, "kept")
        action = self._write(plans.search(plan.analysis, plan.query))
        digest = hashlib.sha256(f"{told.question}\t{action}".encode()).hexdigest()
        return AgentText(
            text_id=f"planning-{digest[:12]}",
            kind="planning",
            style=question.style,
            prompt=(Message(role="user", content=told.question),),
            pieces=(Message(role="assistant", content=action),),
            sources=tuple(memory.sources),
        )
