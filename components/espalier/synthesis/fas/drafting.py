"""Questions of the embedded teacher: several styles over one memory."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from espalier.knowledge import Relation
from espalier.synthesis.fas.calls import MemoryTold, Questions, Style, StyledQuestion
from espalier.synthesis.fas.plain import plain
from espalier.synthesis.fas.schema import Facts, Schema, facts_of

_FRAMES = ("What is {np}?", "Name {np}.", "Tell me {np}.", "Find {np}.")
_DIGIT = re.compile(r"\d")


class QuestionDrafter:
    """Asks about a memory, phrase by phrase as the relations are phrased."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._styles: dict[Style, Callable[[MemoryTold, random.Random], str]] = {
            "retrieval": self._retrieval,
            "numeric": self._numeric,
            "multi_hop": self._multi_hop,
            "synthesis": self._synthesis,
        }

    def questions(self, told: MemoryTold, rng: random.Random) -> Questions:
        """One question for each style that the memory allows."""
        asked = []
        for style in told.styles:
            phrase = self._styles[style](told, rng)
            text = plain(rng.choice(_FRAMES).format(np=phrase)) if phrase else ""
            if text:
                asked.append(StyledQuestion(style=style, question=text))
        return Questions(questions=tuple(asked))

    def _retrieval(self, told: MemoryTold, rng: random.Random) -> str:
        related = self._related(told)
        return _phrase(rng.choice(related)[0], told.entity, rng) if related else ""

    def _numeric(self, told: MemoryTold, rng: random.Random) -> str:
        facts = _facts(told)
        labels = [
            label
            for label in self._schema.plain_labels
            if label in facts and _DIGIT.search(facts[label][0])
        ]
        return f"the {rng.choice(labels)} of {told.entity}" if labels else ""

    def _multi_hop(self, told: MemoryTold, rng: random.Random) -> str:
        chains = [
            (relation, second)
            for relation, listed in self._related(told)
            if len(listed) == 1
            for second in self._schema.relations
            if second.subject_kind == relation.object_kind
            and second.label in self._schema.facts(listed[0], relation.object_kind)
        ]
        if not chains:
            return ""
        relation, second = rng.choice(chains)
        return _phrase(second, _phrase(relation, told.entity, rng), rng, ends=True)

    def _synthesis(self, told: MemoryTold, rng: random.Random) -> str:
        related = self._related(told)
        if len(related) < 2:
            return ""
        (first, _), (second, _) = rng.sample(related, 2)
        phrases = [_phrase(relation, told.entity, rng) for relation in (first, second)]
        return f"both {phrases[0]} and {phrases[1]}"

    def _related(self, told: MemoryTold) -> list[tuple[Relation, list[str]]]:
        """Claims that state a relation of one of the entity's kinds, and what each lists."""
        kinds = sorted(self._schema.kinds(told.entity))
        return [
            (relation, list(listed))
            for label, listed in _facts(told).items()
            for kind in kinds
            if (relation := self._schema.relation(kind, label))
        ]


def _facts(told: MemoryTold) -> Facts:
    return facts_of(claim.text for claim in told.claims)


def _phrase(relation: Relation, inner: str, rng: random.Random, *, ends: bool = False) -> str:
    """A phrasing around `inner`; around a phrase, one that ends with it nests more readably."""
    ending = [text for text in relation.phrasings if text.endswith("{x}")] if ends else []
    return rng.choice(ending or list(relation.phrasings)).replace("{x}", inner)
