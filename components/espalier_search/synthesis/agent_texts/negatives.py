"""Negatives: texts about calls that must not be made (Agent-FLAN, arXiv:2403.12881).

There are three kinds, in turn: the needed tool is not offered, so the agent declines; a tool is
offered but the prompt contains the answer, so the agent calls none; the prompt demands a tool that
does not exist, so the agent uses the one that does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from espalier.environments.funnel import Funnel
from espalier.records import AgentText, FinalAnswer, Message, Task, action_of
from espalier.records.knowledge import Document
from espalier.records.trajectory import Trajectory
from espalier_search.synthesis.agent_texts.calls import plain_text
from espalier_search.synthesis.agent_texts.schema import facts_in
from espalier_search.synthesis.search_wording import WriteAction
from espalier_search.synthesis.task_making import evidence_of
from espalier_search.synthesis.webshaper.candidate import StatedTriples

HEADING = "negatives"
NOT_OFFERED, NOT_NEEDED, NOT_EXISTING = "not_offered", "not_needed", "not_existing"
KINDS = (NOT_OFFERED, NOT_NEEDED, NOT_EXISTING)
DECLINED = "cannot be found without a tool"
_ItemT = TypeVar("_ItemT")
UNKNOWN_TOOLS = ("map", "calculator", "browser", "database", "translator", "calendar")


def not_offered_prompt(question: str) -> str:
    """The question with the remark that no tool is offered."""
    return f"No tool is offered. {question}"


def not_existing_prompt(question: str, tool: str) -> str:
    """The question with the demand to use a tool that does not exist."""
    return f"Use the {tool} tool. {question}"


def not_needed_prompt(title: str, label: str, value: str) -> str:
    """A question that is preceded by its answer."""
    return f"The {label} of {title} is {value}. What is the {label} of {title}?"


class Negatives:
    """Draws negatives from the training tasks, documents and demonstrations."""

    def __init__(
        self,
        tasks: Mapping[str, Task],
        documents: Sequence[Document],
        funnel: Funnel,
        write: WriteAction,
        seed: int,
        statements: StatedTriples | None = None,
    ) -> None:
        """Create the negatives of a run; `write` writes actions in the policy's dialect."""
        self._statements = statements
        self._tasks = tasks
        self._write = write
        self._documents = documents
        self._funnel = funnel
        self._rng = random.Random(f"{seed}/negatives")

    def texts(self, demonstrations: Sequence[Trajectory], count: int) -> list[AgentText]:
        """Up to `count` negatives, the kinds in turn; others replace an exhausted kind."""
        streams: dict[str, Iterator[AgentText]] = {
            NOT_OFFERED: self._not_offered(),
            NOT_NEEDED: self._not_needed(),
            NOT_EXISTING: self._not_existing(demonstrations),
        }
        kept: list[AgentText] = []
        while streams and len(kept) < count:
            for kind in list(streams)[: count - len(kept)]:
                text = next(streams[kind], None)
                if text is None:
                    del streams[kind]
                    self._funnel.count(HEADING, f"{kind}_exhausted")
                else:
                    kept.append(text)
                    self._funnel.count(HEADING, kind)
        return kept

    def _not_offered(self) -> Iterator[AgentText]:
        for task in self._shuffled(list(self._tasks.values())):
            decline = self._write(FinalAnswer(DECLINED, "no tool"))
            yield _negative(NOT_OFFERED, not_offered_prompt(task.question), [decline], task)

    def _not_needed(self) -> Iterator[AgentText]:
        for document in self._shuffled(list(self._documents)):
            said = facts_in(document.title, document.lines, self._statements)
            facts = [(label, values[0]) for label, values in said.items() if len(values) == 1]
            title = plain_text(document.title)
            if not facts or not title:
                continue
            label, value = self._rng.choice(facts)
            if plain_text(value):
                answer = self._write(FinalAnswer(value, "answer"))
                prompt = not_needed_prompt(title, label, value)
                yield _negative(NOT_NEEDED, prompt, [answer], document)

    def _not_existing(self, demonstrations: Sequence[Trajectory]) -> Iterator[AgentText]:
        for trajectory in self._shuffled(list(demonstrations)):
            task = self._tasks[trajectory.task_id]
            prompt = not_existing_prompt(task.question, self._rng.choice(UNKNOWN_TOOLS))
            pieces = [
                self._write(action_of(message)) if message.role == "assistant" else message.content
                for message in trajectory.messages[len(task.prompt) :]
            ]
            yield _negative(NOT_EXISTING, prompt, pieces, task)

    def _shuffled(self, items: list[_ItemT]) -> list[_ItemT]:
        return self._rng.sample(items, len(items))


def _negative(kind: str, prompt: str, pieces: Sequence[str], about: Task | Document) -> AgentText:
    """A negative text; `pieces` alternate between actions and observations."""
    if isinstance(about, Task):
        name, task_id, sources = about.task_id, about.task_id, evidence_of(about)
    else:
        name, task_id, sources = about.document_id, "", (about.document_id,)
    return AgentText(
        text_id=f"negative-{kind}-{name}",
        kind="negative",
        style=kind,
        prompt=(Message(role="user", content=prompt),),
        pieces=tuple(
            Message(role="tool" if place % 2 else "assistant", content=text)
            for place, text in enumerate(pieces)
        ),
        task_id=task_id,
        sources=sources,
    )
