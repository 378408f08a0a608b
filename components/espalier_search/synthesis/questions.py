"""Questions of every split: a user's own first, then formal ones up to the requested number."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from espalier.completions import opened_model
from espalier.config import Profile, SplitsConfig
from espalier.environments.contract import View
from espalier.environments.demonstrations import Rejected
from espalier.environments.funnel import Funnel
from espalier.records import SPLITS, DataError, Split
from espalier.records.folding import folded_name
from espalier.records.knowledge import KnowledgeGraph, Triple, load_documents
from espalier_search.knowledge.search import SearchTool, documents_path
from espalier_search.knowledge.splits import MAX_NAME_CHARACTERS, MAX_NAME_WORDS
from espalier_search.synthesis.inverted.asking import inverted_question
from espalier_search.synthesis.inverted.drawing import InvertedQuestions
from espalier_search.synthesis.made_questions import made_questions
from espalier_search.synthesis.own_questions import OwnQuestion, read_own_questions
from espalier_search.synthesis.rewording import reworded_questions
from espalier_search.synthesis.source_use import (
    count_source_rows,
    count_triples,
    count_where_answers_stand,
    least_documents,
    least_subjects,
    triples_read,
)
from espalier_search.synthesis.task_making import (
    GROWN,
    INDEX_OF_SPLIT,
    MADE,
    RoutedTask,
    formal_question,
    own_question,
)
from espalier_search.synthesis.teacher import DETOUR_KINDS, Route, RouteTeacher
from espalier_search.synthesis.webshaper.candidate import (
    CandidateQuestion,
    DocumentTexts,
    StatedTriples,
    World,
)
from espalier_search.synthesis.webshaper.expansion import QuestionGrower
from espalier_search.synthesis.webshaper.expansion_calls import EmbeddedExpander
from espalier_search.synthesis.webshaper.generator import Generator, kind_weights
from espalier_search.synthesis.webshaper.steps import MAX_LISTED, Steps

_OTHERWISE = (
    "give knowledge.triples about more entities (about {subjects} with a document of their own; "
    "now {num_subjects}), give question/answer pairs in knowledge.questions with answers in at "
    "least {documents} documents (now {num_own} pairs), or change splits.heldout_share and "
    "splits.dev_share"
)
_REMEDIES = {
    "answer_twice_in_last_document": "the subject's document names the answer in text that does "
    "not state the triple. A sentence that states it is allowed: let it name the object and use "
    "the words of the relation's name, or one wording in 5 documents or more",
    "named_in_no_sentence": "no sentence of the subject's document names the object: write one, or "
    "set knowledge.triple_lines = true, which adds a line for every triple to the documents",
    "stated_in_no_sentence": "the subject's document names the object in sentences that do not "
    "state the triple: use the words of the relation's name, or one wording in 5 documents or more",
    "answer_in_earlier_document": "documents on the way to the answer name it already: give "
    "objects that only the document of their subject names",
    "answer_on_chain": "relations lead back to an entity that the question names: give relations "
    "to further entities",
    "not_unique": "subjects have several objects, and the question fits all of them: give "
    "relations with one object for each subject",
    "ambiguous_step": "a step on the way leads to several entities: give relations with one object "
    "for each subject",
    "unreadable_line": "a line of the documents is longer than an observation, or hides names of "
    "other splits: raise search.max_observation_words",
    "entity_not_askable": "questions need names that are unique, hold a letter or digit, and have "
    f"at most {MAX_NAME_WORDS} words and {MAX_NAME_CHARACTERS} characters: shorten names, or give "
    "entities of one name different names",
    "object_not_admitted": "objects have unsuitable names or belong to another split: give objects "
    "that at least three subjects share, or more triples",
    "entity_of_another_split": "no entity is left for this split: give more triples, or change "
    "splits.heldout_share and splits.dev_share",
    "subject_without_document": "subjects have no document: give each a document with its name as "
    "the title",
    "list_too_long": f"subjects have more than {MAX_LISTED} objects of one relation",
}
"""Reason for refusing or leaving out candidates -> remedy for the user."""
_SHOWN_REASONS = 3
_LEAST_TRAIN = 128
"""Half of them for the warm start, the other half for four steps of 16 tasks."""
_LEAST_DEV = 20
"""Dev questions choose the weights to keep; with 20 questions, each is worth 5 points."""
_LEAST_HELDOUT = 100
"""With 100 questions, the 95 % interval of a share of 1/2 is 20 points wide."""

_SEED_ROLLOUTS = 5
"""Attempts at a seed question, one of which must be right (arXiv:2507.15061, sec. 4.1)."""
_TITLE_WORDS = 8
"""Words of an observation reserved for the title and the label of the line."""


def make_questions(
    profile: Profile, knowledge: Path, graph: KnowledgeGraph, funnel: Funnel
) -> dict[Split, list[RoutedTask]]:
    """The questions of every split, in random order.

    Raises:
        DataError: a split has no question.
    """
    if profile.asks_own_knowledge:
        count_source_rows(knowledge, funnel)
    own = _own_questions(knowledge / "questions.jsonl", profile, funnel)
    if own["train"]:
        own["train"] += _made_questions(profile, knowledge, funnel, room=_asked(profile)["train"])
    formal = FormalQuestions(profile, knowledge, graph, funnel)
    questions: dict[Split, list[RoutedTask]] = {}
    for split, asked in _asked(profile).items():
        found = own[split]
        if len(found) < asked:
            found = found + formal.draw(split, asked - len(found))

        # the first question of each wording
        kept: dict[str, RoutedTask] = {}
        for question in found:
            kept.setdefault(question.task.question, question)
        if len(kept) < len(found):
            funnel.count(f"{split}.wording", "asked_before", len(found) - len(kept))

        questions[split] = list(kept.values())
        random.Random(f"{profile.seed}/{split}/mixed").shuffle(questions[split])
    if empty := [split for split, found in questions.items() if not found]:
        num_own = sum(len(found) for found in own.values())
        raise DataError(_nothing_to_ask(empty, graph, num_own, profile.splits, funnel))
    if profile.asks_own_knowledge:
        formal.count_triples()
        _remark_on_few(questions, funnel)
    return questions


class FormalQuestions:
    """Draws the formal questions of a knowledge artifact, split by split."""

    def __init__(
        self, profile: Profile, knowledge: Path, graph: KnowledgeGraph, funnel: Funnel
    ) -> None:
        self._profile = profile
        self._knowledge = knowledge
        self._graph = graph
        self._funnel = funnel
        self._evidence = self._documents("full")
        weights = kind_weights(profile.synthesis)
        self._generator = Generator(graph, weights, profile.seed)
        self._grown = GrownQuestions(profile, knowledge, self._generator)
        self._asked: set[Triple] = set()
        """Triples that a solver of the questions drawn so far has to read."""

    def count_triples(self) -> None:
        """Count every triple as asked about, or under the reason against it."""
        worlds: dict[Split, World] = {split: self.world(split) for split in SPLITS}
        count_triples(self._graph, worlds, self._asked, self._funnel)

    def draw(self, split: Split, count: int) -> list[RoutedTask]:
        """Up to `count` questions of a split."""
        world = self.world(split)
        config = self._profile.synthesis
        wanted = round(count * config.expansion.share)
        grown = self._grown.draw(split, wanted, world, self._funnel)
        wanted = min(round(count * config.inverted.share), count - len(grown))
        inverted = self._inverted.draw(split, wanted, world, self._funnel) if wanted else []
        left = count - len(grown) - len(inverted)
        drawn = self._generator.generate(split, left, world, self._funnel)
        seed = self._profile.seed
        self._asked |= triples_read([*grown, *drawn])
        if self._profile.asks_own_knowledge:
            count_where_answers_stand([*grown, *drawn], split, self._funnel)
        return [
            *(inverted_question(question, self._graph, split, seed) for question in inverted),
            *(formal_question(candidate, split, seed, GROWN) for candidate in grown),
            *(formal_question(candidate, split, seed) for candidate in drawn),
        ]

    @cached_property
    def _inverted(self) -> InvertedQuestions:
        config = self._profile.synthesis.inverted
        return InvertedQuestions(self._graph, config, self._profile.seed)

    def world(self, split: Split) -> World:
        """The graph and documents by which the questions of a split are judged."""
        view_name = INDEX_OF_SPLIT[split]
        view = self._evidence if view_name == "full" else self._documents(view_name)
        max_words = self._profile.search.max_observation_words - _TITLE_WORDS
        in_prose = self._profile.knowledge.reads_prose
        return World(self._graph, self._evidence, view, max_words, in_prose=in_prose)

    def _documents(self, view: View) -> DocumentTexts:
        return DocumentTexts(load_documents(documents_path(self._knowledge, view)))


class GrownQuestions:
    """Draws grown questions; `generator` remembers their queries and all others drawn."""

    def __init__(self, profile: Profile, knowledge: Path, generator: Generator) -> None:
        self._profile = profile
        self._knowledge = knowledge
        self._generator = generator

    def draw(
        self, split: Split, count: int, world: World, funnel: Funnel
    ) -> list[CandidateQuestion]:
        """Up to `count` questions of a split; fewer if walks yield nothing new.

        Raises:
            EngineError: the teacher's model cannot be used.
        """
        return asyncio.run(self._drawn(split, count, world, funnel)) if count else []

    async def _drawn(
        self, split: Split, count: int, world: World, funnel: Funnel
    ) -> list[CandidateQuestion]:
        found: list[CandidateQuestion] = []
        model = self._profile.teacher.model or EmbeddedExpander(self._profile.seed)
        async with opened_model(model) as opened:
            growing = QuestionGrower(
                opened.model,
                self._generator,
                self._profile.synthesis.expansion,
                seed=self._profile.seed,
                in_flight=opened.in_flight,
            )
            steps = Steps(world.graph, split)
            rollouts = _Rollouts(self._profile, self._knowledge, split, world.statements)
            questions = growing.questions(steps, world, rollouts.some_right, funnel)
            async for candidate in questions:
                found.append(candidate)
                if len(found) == count:
                    break
            await questions.aclose()
            for call, usage in opened.ledger.as_dict().items():
                funnel.remark(f"{split}: {call}: {usage}")
        return found


class _Rollouts:
    """Attempts of the route teacher at a seed question, each with another kind of mistake."""

    def __init__(
        self, profile: Profile, knowledge: Path, split: Split, statements: StatedTriples
    ) -> None:
        search = SearchTool.open(knowledge, INDEX_OF_SPLIT[split], profile.search)
        words = profile.search.max_observation_words
        self._teacher = RouteTeacher(search, words, profile.seed, statements)
        self._attempts = ("", *DETOUR_KINDS * _SEED_ROLLOUTS)[:_SEED_ROLLOUTS]
        self._seed = profile.seed
        self._split: Split = split

    def some_right(self, candidate: CandidateQuestion) -> bool:
        """Whether at least one attempt ends with the right answer."""
        question = formal_question(candidate, self._split, self._seed)
        assert isinstance(question.route, Route), "a formal question has a route"
        return any(
            not isinstance(self._teacher.demonstrate(question.task, question.route, kind), Rejected)
            for kind in self._attempts
        )


def _own_questions(path: Path, profile: Profile, funnel: Funnel) -> dict[Split, list[RoutedTask]]:
    """A user's questions by split, at most as many as the profile requests."""
    by_split: dict[Split, list[OwnQuestion]] = {split: [] for split in SPLITS}
    for question in read_own_questions(path):
        by_split[question.split].append(question)
    asked = _asked(profile)
    kept: dict[Split, list[RoutedTask]] = {}
    for split, found in by_split.items():
        if len(found) > asked[split]:
            funnel.count(f"{split}.own_questions", "more_than_asked_for", len(found) - asked[split])
            found = random.Random(f"{profile.seed}/{split}/own").sample(found, asked[split])
        if found:
            funnel.count(f"{split}.own_questions", "kept", len(found))
        kept[split] = [own_question(question) for question in found]
    return kept


def _made_questions(
    profile: Profile, knowledge: Path, funnel: Funnel, *, room: int
) -> list[RoutedTask]:
    """Training questions made from the documents; with the pairs they are at most `room`."""
    pairs = read_own_questions(knowledge / "questions.jsonl")
    train = [pair for pair in pairs if pair.split == "train"]
    documents = load_documents(documents_path(knowledge, "train"))
    taken = frozenset(folded_name(pair.question) for pair in pairs)
    found = made_questions(train, documents, taken)
    wanted, model = profile.synthesis.made_questions, profile.teacher.model
    if wanted and model is not None:
        titles = {document.document_id: document.title for document in documents}
        taken |= {folded_name(pair.question) for pair in found}
        found += reworded_questions(
            train, model, wanted=wanted, titles=titles, taken=taken, funnel=funnel
        )
    most = min(len(train) * wanted, max(0, room - len(train)))
    chosen = random.Random(f"{profile.seed}/made").sample(found, min(most, len(found)))
    known = {(pair.document_id, folded_name(pair.answers[0])) for pair in train}
    for pair in chosen:
        fact = pair.document_id, folded_name(pair.answers[0])
        funnel.count("train.made_questions", "other_words" if fact in known else "other_fact")
    if left := len(found) - len(chosen):
        funnel.count("train.made_questions", "more_than_asked_for", left)
    return [own_question(pair, MADE) for pair in chosen]


def _nothing_to_ask(
    empty: Sequence[str], graph: KnowledgeGraph, num_own: int, splits: SplitsConfig, funnel: Funnel
) -> str:
    """The error for splits without a question: refusals by reason, and remedies."""
    lines = [f"synthesis: no question for {', '.join(empty)}."]
    reasons: Counter[str] = Counter()
    for split in empty:
        refused = Counter(funnel.counts(f"{split}.drawn"))
        del refused["signature_given_up"]  # a consequence of refusals that are counted already
        left_out = Counter(funnel.counts(f"{split}.excluded_before_drawing"))
        # refusals of drawn questions tell more than questions that could not be drawn
        reasons += refused or left_out
        for what, counts in (("refused", refused), ("left out before drawing", left_out)):
            if counts:
                shown = ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
                lines.append(f"  {split}, {what}: {shown}")
    known = [reason for reason, _ in reasons.most_common() if reason in _REMEDIES]
    for reason in known[:_SHOWN_REASONS]:
        lines.append(f"  {reason}: {_REMEDIES[reason]}.")
    too_few = f"{len(graph.relations)} relations and {num_own} questions of your own are too few: "
    otherwise = _OTHERWISE.format(
        subjects=least_subjects(graph, splits),
        num_subjects=len({triple.subject for triple in graph.triples()}),
        documents=least_documents(splits),
        num_own=num_own,
    )
    lines.append(f"  {'Otherwise ' if known else too_few}{otherwise}.")
    return "\n".join(lines)


def _remark_on_few(questions: Mapping[Split, Sequence[RoutedTask]], funnel: Funnel) -> None:
    """Add remarks about splits that are too small to train on or to measure with."""
    least: dict[Split, tuple[int, str]] = {
        "train": (_LEAST_TRAIN, "a warm start and a few steps of other tasks"),
        "dev": (_LEAST_DEV, "telling weights apart"),
        "heldout": (_LEAST_HELDOUT, "an interval of 10 points"),
    }
    for split, (number, purpose) in least.items():
        if (found := len(questions[split])) < number:
            funnel.remark(
                f"warning: {split} has {found} questions, and {purpose} needs {number} or more: "
                "add question/answer pairs, triples or documents, or change splits.heldout_share "
                "and splits.dev_share"
            )


def _asked(profile: Profile) -> Mapping[Split, int]:
    config = profile.synthesis
    return {"train": config.train_tasks, "dev": config.dev_tasks, "heldout": config.heldout_tasks}
