"""The embedded judge of plans: words of the question against words of the plan.

It knows which names, lines and kinds there are, and by which words questions speak of a relation.
It reads no question as a formula, runs nothing, and is told no answer: whether two equal hops were
meant, or in which order two that fit both ways, it cannot tell, and is wrong now and then.
"""

from __future__ import annotations

from collections import defaultdict

from espalier.knowledge.folding import EMPTY_WORDS, folded_name, words
from espalier.synthesis.fas.calls import Judgement, PlanTold
from espalier.synthesis.fas.schema import Schema
from espalier.synthesis.plans import LABEL_SEPARATOR

_FRAME_WORDS = EMPTY_WORDS | {
    *("what", "which", "name", "tell", "me", "find", "both", "and", "also", "or", "one"),
    *("to", "for", "with", "its", "by", "as", "from", "where"),
}


class PlanJudge:
    """Judges plans over a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._words: dict[str, set[str]] = defaultdict(set)
        """Label -> words by which questions speak of it."""
        for relation in schema.relations:
            text = " ".join((relation.label, *relation.phrasings)).replace("{x}", " ")
            self._words[relation.label] |= set(words(text)) - _FRAME_WORDS
        for label in schema.plain_labels:
            self._words[label] |= set(words(label))
        self._labels = {folded_name(label): label for label in schema.labels}

    def judge(self, told: PlanTold) -> Judgement:
        """Whether the plan is likely to obtain what the question needs."""
        fault = self._fault(told)
        return Judgement(likely=not fault, reason=fault or "the plan says what the question asks")

    def _fault(self, told: PlanTold) -> str:
        plan = told.plan
        if plan.tool not in {tool.name for tool in told.tools}:
            return "no such tool is offered"
        steps = [folded_name(step) for step in plan.analysis.split(LABEL_SEPARATOR.strip())]
        labels = [self._labels[step] for step in steps if step in self._labels]
        if not labels or len(labels) < len(steps):
            return "the analysis names no lines of documents"
        query, ending = folded_name(plan.query), f" {steps[0]}"
        if not query.endswith(ending):
            return "the search is not for the first line of the analysis"
        name = query.removesuffix(ending)
        if f" {name} " not in f" {folded_name(told.question)} ":
            return "the question does not name what is searched for"
        return self._chain_fault(name, labels) or self._word_fault(told.question, name, labels)

    def _chain_fault(self, name: str, labels: list[str]) -> str:
        """Whether documents of these kinds have these lines, one leading to the next."""
        kinds = self._schema.kinds(name)
        if not kinds:
            return "nothing of that name is known"
        for label in labels:
            found = [self._schema.relation(kind, label) for kind in sorted(kinds)]
            reached = {relation.object_kind for relation in found if relation}
            if not reached and label not in self._schema.plain_labels:
                return "a line is looked for where no document has it"
            kinds = frozenset(reached) or kinds
        return ""

    def _word_fault(self, question: str, name: str, labels: list[str]) -> str:
        """Whether every line is spoken of, and nothing spoken of is left out."""
        asked = set(words(question)) - set(words(name)) - _FRAME_WORDS
        if any(not (asked & self._words[label]) for label in labels):
            return "the question does not speak of a line in the analysis"
        explained = set().union(*(self._words[label] for label in labels))
        known = set().union(*self._words.values())
        if missing := sorted((asked & known) - explained):
            return f"the analysis leaves out {' '.join(missing[:3])}"
        return ""
