"""The question that an answer is right for: the path that a trajectory read, by the triples.

    asked     the currency of the country of lyon
    read      search "lyon country" -> lyon | country: france           answer france
    solved    the country of lyon

A step of the path is a search for an entity's name and the label of a line, whose result shows the
line with one value that the triples confirm, or in a user's prose a sentence that states it. The
new question is the longest path that ends with the answer and that the rules of all questions
allow. A demonstration has only the searches of its path, and the teacher's thoughts, as the
trajectory's own thoughts were about the original question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from espalier.environments.demonstrations import Rejected
from espalier.environments.hindsight import Achieved, MadeCall, made_calls
from espalier.records import FinalAnswer, Task, ToolCalls
from espalier.records.folding import content_words, folded_name, name_words, words
from espalier.records.trajectory import Trajectory
from espalier_search.synthesis.evolution import Prover
from espalier_search.synthesis.search_wording import (
    READY_TO_ANSWER,
    remaining_hops,
    search_call,
    shown_hits,
)
from espalier_search.synthesis.webshaper.query import Constant
from espalier_search.synthesis.webshaper.steps import project

SOURCE = "hindsight"
_MAX_PATHS = 1000
"""Most paths that are considered: repeated searches multiply their number."""


class _Step(NamedTuple):
    """A line that a search asked for and showed; `relation` leads from `subject` to `reached`."""

    place: int
    query: str
    subject: str
    relation: str
    reached: str


class SearchHindsight:
    """A `Hindsight` over the triples of a knowledge artifact."""

    def __init__(self, prover: Prover) -> None:
        """Store the prover, which also refuses questions of dev and held-out tasks."""
        self._prover = prover
        self._graph = prover.graph
        self._by_name = {
            folded_name(entity.name): entity.entity_id
            for entity in prover.graph.entities.values()
            if entity.askable
        }

    def achieved(self, task: Task, attempt: Trajectory) -> Achieved | Rejected:
        """Return the question that the trajectory's path answers, or why there is none."""
        del task
        answer = attempt.answer or ""
        reached = self._by_name.get(folded_name(answer))
        steps = [
            step
            for place, made in enumerate(made_calls(attempt))
            for step in self._steps(place, made)
        ]
        if reached is None:
            return Rejected("answer_is_no_entity")
        reason = "answer_at_the_end_of_no_path"
        paths = islice(_paths(reached, steps), _MAX_PATHS)
        for path in sorted(paths, key=len, reverse=True):
            query = project(tuple(step.relation for step in path), Constant(path[0].subject))
            proven = self._prover.proven(query, frozenset())
            if isinstance(proven, Task):
                return Achieved(proven, tuple(self._actions(path, answer)))
            if reason == "answer_at_the_end_of_no_path":
                reason = proven  # the reason for the longest path
        return Rejected(reason)

    def _steps(self, place: int, made: MadeCall) -> Iterator[_Step]:
        """Yield the lines that a call searched for and showed."""
        query = str(made.call.arguments.get("query", ""))
        said, named = set(words(query)), set(name_words(query))
        statements = self._prover.world.statements
        for title in dict.fromkeys(hit.title for hit in shown_hits(made.result.content)):
            subject = self._by_name.get(folded_name(title))
            if subject is None or not set(name_words(title)) <= named:
                continue
            for name, relation in self._graph.relations.items():
                reached = self._prover.steps.single[name].get(subject)
                asked = (*content_words(relation.label), *statements.wording(relation.label))
                if reached is None or said.isdisjoint(asked):
                    continue
                listed = statements.shown(made.result.content, title, relation.label) or ()
                wanted = folded_name(self._graph.entities[reached].name)
                if [folded_name(one) for one in listed] == [wanted]:
                    yield _Step(place, query, subject, name, reached)

    def _actions(self, path: Sequence[_Step], answer: str) -> Iterator[ToolCalls | FinalAnswer]:
        labels = [self._graph.relations[step.relation].label for step in path]
        for place, step in enumerate(path):
            yield search_call(remaining_hops(labels[place:]), step.query)
        yield FinalAnswer(answer, READY_TO_ANSWER)


def _paths(reached: str, steps: Sequence[_Step]) -> Iterator[tuple[_Step, ...]]:
    """Yield every path of steps, in reading order, that ends at an entity."""
    for number, step in enumerate(steps):
        if step.reached == reached:
            yield (step,)
            earlier = [one for one in steps[:number] if one.place < step.place]
            for path in _paths(step.subject, earlier):
                yield (*path, step)
