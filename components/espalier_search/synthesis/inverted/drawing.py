"""Drawing of inverted questions: conjunctions of loose clues that fit only one entity."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from espalier.config import InvertedConfig
from espalier.environments.funnel import Funnel
from espalier.records import Split
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.inverted.clues import Clue, FactIndex, Span, Witness
from espalier_search.synthesis.webshaper.candidate import World
from espalier_search.synthesis.webshaper.steps import MAX_LISTED, Steps

_ATTEMPTS = 12
"""Number of random orders of a target's clues to try for a conjunction."""
_PASSES = 8
"""Maximum number of questions about one target."""
_MIN_CLUES = 2


@dataclass(frozen=True, slots=True)
class InvertedQuestion:
    """Clues that fit `target` and no other entity of its kind."""

    target: str
    witnesses: tuple[Witness, ...]

    @property
    def clues(self) -> tuple[Clue, ...]:
        """The clues, in the order of the question."""
        return tuple(witness.clue for witness in self.witnesses)

    @property
    def canonical(self) -> str:
        """A text that is equal for two questions exactly if they have the same clues."""
        return f"inverted({' & '.join(sorted(clue.canonical for clue in self.clues))})"

    @property
    def signature(self) -> str:
        """The labels of the clues."""
        return f"inverted({' & '.join(sorted(clue.signature for clue in self.clues))})"

    @property
    def named(self) -> tuple[str, ...]:
        """Ids of the entities that the question names."""
        return tuple(clue.value for clue in self.clues if isinstance(clue.value, str))

    @property
    def entities(self) -> tuple[str, ...]:
        """Ids of all entities that the lines lead through, without numbers."""
        found = [self.target]
        for clue, reached in self.witnesses:
            found += reached[:-1] if isinstance(clue.value, Span) else reached
        return tuple(dict.fromkeys(found))

    @property
    def num_lines(self) -> int:
        """Number of lines that prove the answer."""
        return sum(len(clue.labels) for clue in self.clues)


class InvertedQuestions:
    """Draws the questions of every split; no conjunction is drawn twice, not even across splits."""

    def __init__(self, graph: KnowledgeGraph, config: InvertedConfig, seed: int) -> None:
        self._graph = graph
        self._config = config
        self._seed = seed
        self._facts = FactIndex(graph)
        self._seen: set[str] = set()

    def draw(
        self, split: Split, count: int, world: World, funnel: Funnel
    ) -> list[InvertedQuestion]:
        """Up to `count` questions, kinds of targets in turn; fewer if the graph has no more.

        Clues are lines of documents: an entity whose document is prose is counted and left out.
        """
        rng = random.Random(f"{self._seed}/{split}/inverted")
        steps = Steps(self._graph, split)
        by_kind: dict[str, list[str]] = defaultdict(list)
        for entity in self._graph.entities.values():
            if not (entity.askable and entity.split == split and entity.document_id):
                continue
            if world.statements.is_prose(entity.entity_id):
                funnel.count(f"{split}.inverted", "document_of_prose")
            else:
                by_kind[entity.kind].append(entity.entity_id)
        streams = {
            kind: self._of_targets(targets, _Readable(self._facts, steps, world), rng, funnel)
            for kind, targets in sorted(by_kind.items())
        }
        found: list[InvertedQuestion] = []
        while streams and len(found) < count:
            for kind in list(streams):
                question = next(streams[kind], None) if len(found) < count else None
                if question is not None:
                    found.append(question)
                elif len(found) < count:
                    del streams[kind]
        return found

    def reason_against(self, question: InvertedQuestion) -> str | None:
        """The first rule that the question breaks; None if its answer is proven."""
        kind = self._graph.entities[question.target].kind
        held = [self._facts.holders(kind, clue) for clue in question.clues]
        if not held or frozenset.intersection(*held) != {question.target}:
            return "not_unique"
        if min(map(len, held)) < self._config.min_holders:
            return "not_loose"
        for part in combinations(held, len(held) - 1):
            if part and len(frozenset.intersection(*part)) == 1:
                return "redundant_clue"
        if not any(clue.is_obscured for clue in question.clues):
            return "nothing_obscured"
        if question.target in question.named:
            return "answer_named"
        if len(set(question.named)) < len(question.named):
            return "repeated_value"
        if question.num_lines > self._config.max_lines:
            return "too_many_lines"
        return "drawn_before" if question.canonical in self._seen else None

    def _of_targets(
        self, targets: list[str], readable: _Readable, rng: random.Random, funnel: Funnel
    ) -> Iterator[InvertedQuestion]:
        askable = targets
        for _ in range(_PASSES):
            tried, askable = rng.sample(askable, len(askable)), []
            for target in tried:
                witnesses = list(readable.witnesses(target, self._config.min_holders))
                question = self._conjunction(target, witnesses, rng)
                outcome = "accepted" if question else "no_conjunction"
                funnel.count(f"{readable.steps.split}.inverted", outcome)
                if question:
                    askable.append(target)  # may get another question, after the other targets
                    self._seen.add(question.canonical)
                    yield question

    def _conjunction(
        self, target: str, witnesses: Sequence[Witness], rng: random.Random
    ) -> InvertedQuestion | None:
        """A conjunction of the clues that fits only `target`; None if none is found."""
        for _ in range(_ATTEMPTS if witnesses else 0):
            chosen = self._narrowed(target, rng.sample(witnesses, len(witnesses)))
            question = InvertedQuestion(target, tuple(rng.sample(chosen, len(chosen))))
            if len(chosen) >= _MIN_CLUES and self.reason_against(question) is None:
                return question
        return None

    def _narrowed(self, target: str, witnesses: Sequence[Witness]) -> list[Witness]:
        """Witnesses, each of which leaves fewer holders, without those that others make needless.

        Empty if `max_clues` of them do not leave the target alone.
        """
        kind = self._graph.entities[target].kind
        chosen: list[tuple[Witness, frozenset[str]]] = []
        common: frozenset[str] | None = None
        for witness in witnesses:
            if any(witness.clue.labels == other.clue.labels for other, _ in chosen):
                continue
            held = self._facts.holders(kind, witness.clue)
            left = held if common is None else common & held
            if common is None or len(left) < len(common):
                chosen.append((witness, held))
                common = left
            if len(left) == 1:
                break
            if len(chosen) == self._config.max_clues:
                return []
        for pair in list(chosen):
            rest = [held for other, held in chosen if other is not pair[0]]
            if rest and len(frozenset.intersection(*rest)) == 1:
                chosen.remove(pair)
        return [witness for witness, _ in chosen]


class _Readable:
    """The witnesses that solvers of a split can read and whose values may be named."""

    def __init__(self, facts: FactIndex, steps: Steps, world: World) -> None:
        self.steps = steps
        self._facts = facts
        self._world = world

    def witnesses(self, target: str, min_holders: int) -> Iterator[Witness]:
        """Witnesses of clues that fit at least `min_holders` entities."""
        kind = self._facts.graph.entities[target].kind
        for witness in self._facts.witnesses(target):
            clue, reached = witness
            if len(self._facts.holders(kind, clue)) < min_holders:
                continue
            shown = reached[:-1] if isinstance(clue.value, Span) else reached
            if target in reached or not self.steps.admits_all(shown):
                continue
            if isinstance(clue.value, str) and self._gives_away(clue.value, target, min_holders):
                continue
            subjects = (target, *reached[:-1])
            if all(map(self._is_readable, subjects, clue.labels, reached)):
                yield witness

    def _gives_away(self, named: str, target: str, min_holders: int) -> bool:
        """Whether a short line of the named entity's document lists the target.

        With "largest country: Russia" in the document of Asia, a clue that names Asia gives the
        target Russia away.
        """
        labels = self._facts.labels(named)
        lists = (self._facts.objects(named, label) for label in labels)
        return any(target in listed and len(listed) < min_holders for listed in lists)

    def _is_readable(self, subject: str, label: str, reached: str) -> bool:
        entities = self._facts.graph.entities
        if len(self._facts.objects(subject, label)) > MAX_LISTED:
            return False
        line = self._world.view.line(entities[subject].document_id, label)
        if line is None or len(line.split()) > self._world.max_line_words:
            return False
        return entities[reached].name in line.split("; ")
