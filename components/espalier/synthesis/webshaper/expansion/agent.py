"""The expander: grows a question layer by layer, one leaf constant after the other.

In a layer every constant that the layer before brought in becomes a variable with a sub-question
of its own (WebShaper, arXiv:2507.15061, sec. 4.2). The agent acts until a sub-question is accepted,
gives up, or has used its turns; the leaf then stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

from espalier.completions import Model, Refusal
from espalier.config import ExpansionConfig
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.webshaper.candidate import Candidate
from espalier.synthesis.webshaper.expansion.calls import (
    Action,
    Found,
    GiveUp,
    Growth,
    Search,
    Summarize,
    Summary,
    Turn,
    Validate,
    Verdict,
    action_request,
)
from espalier.synthesis.webshaper.expansion.tools import Tools
from espalier.synthesis.webshaper.formalism import entries_of, printed
from espalier.synthesis.webshaper.query import Constant, constants, nodes


class _Step(NamedTuple):
    """The result of an action, and the grown question where one was accepted."""

    result: Found | Summary | Verdict
    grown: Candidate | None = None


class Expander:
    """Grows questions of one split with a model and its tools."""

    def __init__(
        self, model: Model, tools: Tools, config: ExpansionConfig, funnel: Funnel, heading: str
    ) -> None:
        self._model = model
        self._tools = tools
        self._config = config
        self._funnel = funnel
        self._heading = heading

    async def grown(self, seed_question: Candidate) -> Candidate | None:
        """The question after the last layer that could grow; None where no leaf could."""
        question = seed_question
        frontier = _leaves(question)
        for _ in range(self._config.layers):
            before = set(constants(question.query))
            for leaf in frontier:
                question = await self._replaced(question, leaf) or question
            frontier = [leaf for leaf in _leaves(question) if leaf not in before]
            if not frontier:
                break
        return None if question is seed_question else question

    async def _replaced(self, question: Candidate, leaf: str) -> Candidate | None:
        """The question with a sub-question in the place of the leaf."""
        growth = self._told(question, leaf)
        for _ in range(self._config.max_actions):
            action = await self._model.answer(action_request(growth, sample=0))
            if isinstance(action, Refusal):
                self._count(f"model_{action.reason}")
                return None
            if isinstance(action.call, GiveUp):
                self._count("gave_up")
                return None
            step = self._carried_out(action, question, leaf)
            if step.grown is not None:
                self._count("grown")
                return step.grown
            turn = Turn(action=action, result=step.result)
            growth = growth.model_copy(update={"turns": (*growth.turns, turn)})
        self._count("out_of_actions")
        return None

    def _carried_out(self, action: Action, question: Candidate, leaf: str) -> _Step:
        match action.call:
            case Search(name=name):
                return _Step(self._tools.search(name))
            case Summarize(relation=relation, names=names):
                return _Step(self._tools.summarize(relation, names))
            case Validate(entries=entries):
                verdict = self._tools.validate(entries, question.query, leaf)
                if isinstance(verdict, Candidate):
                    return _Step(Verdict(accepted=True), verdict)
                self._count(f"refused_{verdict}")
                return _Step(Verdict(accepted=False, reason=verdict))
            case GiveUp():
                raise AssertionError("giving up ends the attempt before it is carried out")

    def _told(self, question: Candidate, leaf: str) -> Growth:
        rows = printed(entries_of(question.query, self._tools.names))
        return Growth(
            question=tuple((row[0], row[1], row[2]) for row in rows),
            leaf=question.name(leaf),
            leaf_kind=question.world.graph.entities[leaf].kind,
            relations=self._tools.relations,
        )

    def _count(self, reason: str) -> None:
        self._funnel.count(self._heading, reason)


def _leaves(question: Candidate) -> list[str]:
    """Constants that stand alone; members of a set are no leaf of their own."""
    return [node.entity_id for node in nodes(question.query) if isinstance(node, Constant)]
