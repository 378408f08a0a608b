"""Reasoning actions: a guess without tools, then the answer from the knowledge.

Step one decomposes the question and guesses (A1); step two is given the knowledge and refines
(A2). A text is kept iff A2 is the gold answer, which neither step is told.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping

from espalier.completions import Model, Refusal, in_order
from espalier.knowledge import Document
from espalier.records import AgentText, FinalAnswer, Message, Task
from espalier.rewards import exact_match
from espalier.synthesis import plans
from espalier.synthesis.fas.calls import (
    Guess,
    KnowledgeTold,
    QuestionTold,
    guess_request,
    refine_request,
)
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.observations import HIT_SEPARATOR, LINE_SEPARATOR
from espalier.synthesis.task_making import evidence_of

HEADING = "reasoning"


class Reasoner:
    """Turns training tasks and the documents they need into reasoning texts."""

    def __init__(
        self,
        model: Model,
        documents: Mapping[str, Document],
        funnel: Funnel,
        write: plans.Write,
        *,
        in_flight: int,
    ) -> None:
        """Wire a reasoner.

        Args:
            model: guesses and refines.
            documents: those that training may read, by id.
            funnel: counts what is kept, and why the rest is not.
            write: spells actions in the policy's dialect.
            in_flight: tasks worked on at a time.
        """
        self._model = model
        self._write = write
        self._documents = documents
        self._funnel = funnel
        self._in_flight = in_flight

    async def texts(self, tasks: Iterable[Task]) -> AsyncGenerator[AgentText]:
        """The texts of the tasks whose refined answer is right."""
        async for text in in_order(self._reasoned, tasks, in_flight=self._in_flight):
            if text is not None:
                yield text

    async def _reasoned(self, task: Task) -> AgentText | None:
        knowledge = [self._documents[d] for d in evidence_of(task) if d in self._documents]
        if not knowledge or len(knowledge) < len(evidence_of(task)):
            self._funnel.count(HEADING, "evidence_not_visible")
            return None
        guess = await self._model.answer(guess_request(QuestionTold(question=task.question)))
        if isinstance(guess, Refusal):
            self._funnel.count(HEADING, f"guess_{guess.reason}")
            return None
        shown = tuple(LINE_SEPARATOR.join((d.title, *d.lines)) for d in knowledge)
        told = KnowledgeTold(question=task.question, first_answer=guess.answer, knowledge=shown)
        refined = await self._model.answer(refine_request(told))
        if isinstance(refined, Refusal):
            self._funnel.count(HEADING, f"refine_{refined.reason}")
            return None
        if not exact_match(refined.answer, task.verifier.gold):
            self._funnel.count(HEADING, "wrong_answer")
            return None
        self._funnel.count(HEADING, "kept")
        self._funnel.count(
            HEADING, "guess_was_right", int(exact_match(guess.answer, [refined.answer]))
        )
        return _text(
            task, guess, shown, self._write(FinalAnswer(refined.answer, refined.reasoning))
        )


def _text(task: Task, guess: Guess, shown: tuple[str, ...], answer: str) -> AgentText:
    thought = f"<think> {plans.LABEL_SEPARATOR.join(guess.parts)} , maybe {guess.answer} </think>"
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
