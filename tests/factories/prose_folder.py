"""A hundred short documents in prose about an invented province, for tests of small own sources.

Names, facts and wordings follow the seed. Every fact is one sentence of the document of its
subject; some sentences say no fact at all. `write` leaves a folder and one file beside it, either
the triples that the sentences state or questions with their answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pr", "r", "s",
           "st", "t", "tr", "v", "w", "z")  # fmt: skip
_RIMES = ("a", "al", "an", "ar", "e", "el", "en", "er", "i", "il", "in", "o", "ol", "on", "or",
          "u", "um", "un")  # fmt: skip
_TRADES = ("painter", "baker", "engineer", "botanist", "lawyer", "printer", "surgeon", "weaver")
_INSTRUMENTS = ("violin", "flute", "cello", "harp", "trumpet", "piano")
_ANIMALS = ("heron", "badger", "otter", "owl", "stork", "lynx", "ram", "hare")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_GOODS = ("bells", "cheese", "paper", "lace", "clocks", "glass", "boats", "honey", "salt")


class Wording(NamedTuple):
    """A relation: how prose says it and how users ask for it."""

    object_type: str
    said: tuple[str, ...]
    asked: tuple[str, ...]
    otherwise: str
    """How those ask who wrote none of the pairs."""


RELATIONS: Mapping[str, Mapping[str, Wording]] = {
    "person": {
        "born_in": Wording(
            "town",
            ("{s} was born in {o}.", "{s}, the child of a miller, was born in {o}."),
            ("Where was {s} born?", "In which town was {s} born?"),
            "{s} came into the world in which town?",
        ),
        "birth_year": Wording(
            "year",
            ("The birth year of {s} is {o}.", "As birth year of {s} the parish book has {o}."),
            ("In which year was {s} born?", "When was {s} born?"),
            "Name the year of the birth of {s}.",
        ),
        "works_for": Wording(
            "company",
            ("{s} works for {o}.", "For most of the week {s} works for {o}."),
            ("Who does {s} work for?", "Which company employs {s}?"),
            "From which company does {s} get a salary?",
        ),
        "trade": Wording(
            "trade",
            ("The trade of {s} is that of a {o}.", "By trade {s} is a {o}."),
            ("What is the trade of {s}?", "Which trade does {s} follow?"),
            "How does {s} earn a living?",
        ),
        "plays": Wording(
            "instrument",
            ("{s} plays the {o} on Sundays.", "In the evening {s} plays the {o}."),
            ("Which instrument does {s} play?", "What does {s} play?"),
            "On what does {s} make music?",
        ),
        "teacher": Wording(
            "person",
            ("The teacher of {s} was {o}.", "{o} was the first teacher of {s}."),
            ("Who was the teacher of {s}?", "Who taught {s}?"),
            "From whom did {s} take lessons?",
        ),
        "spouse": Wording(
            "person",
            ("{s} married {o}.", "The spouse of {s} is {o}."),
            ("Who is the spouse of {s}?", "Who married {s}?"),
            "To whom is {s} wed?",
        ),
        "collects": Wording(
            "animal",
            ("{s} collects pictures of the {o}.", "At home {s} collects the stuffed {o}."),
            ("What does {s} collect?", "Which animal does {s} collect?"),
            "Pictures of which animal hang in the home of {s}?",
        ),
    },
    "town": {
        "river": Wording(
            "river",
            ("{s} lies on the river {o}.", "The river {o} runs through {s}."),
            ("Which river flows through {s}?", "On which river does {s} lie?"),
            "Name the water that passes {s}.",
        ),
        "mayor": Wording(
            "person",
            ("The mayor of {s} is {o}.", "{o} is the mayor of {s}."),
            ("Who is the mayor of {s}?", "Who governs {s}?"),
            "Who heads the town hall of {s}?",
        ),
        "founded_in": Wording(
            "year",
            ("{s} was founded in {o}.", "Monks say {s} was founded in {o}."),
            ("When was {s} founded?", "In which year was {s} founded?"),
            "Since which year has {s} existed?",
        ),
        "known_for": Wording(
            "goods",
            ("{s} is known for its {o}.", "All over the province {s} is known for {o}."),
            ("What is {s} known for?", "For what is {s} known?"),
            "People think of what when they hear of {s}?",
        ),
        "twin_town": Wording(
            "town",
            ("The twin town of {s} is {o}.", "{s} has {o} as its twin town."),
            ("What is the twin town of {s}?", "Which town is the twin of {s}?"),
            "With which town has {s} a partnership?",
        ),
        "market_day": Wording(
            "day",
            ("The market day of {s} is {o}.", "In {s} the market day is {o}."),
            ("When is the market day of {s}?", "Which day is market day in {s}?"),
            "On what day do traders come to {s}?",
        ),
        "inhabitants": Wording(
            "number",
            ("The inhabitants of {s} number {o}.", "{s} has {o} inhabitants."),
            ("How many inhabitants has {s}?", "How many people live in {s}?"),
            "Give the population of {s}.",
        ),
        "coat_of_arms": Wording(
            "animal",
            ("The coat of arms of {s} has a {o}.", "A {o} is on the coat of arms of {s}."),
            ("What is on the coat of arms of {s}?", "Which animal is on the coat of arms of {s}?"),
            "Which creature do the arms of {s} show?",
        ),
    },
    "company": {
        "seat": Wording(
            "town",
            ("{s} has its seat in {o}.", "The seat of {s} is {o}."),
            ("Where is the seat of {s}?", "In which town is {s} based?"),
            "From which town is {s} run?",
        ),
        "founder": Wording(
            "person",
            ("The founder of {s} was {o}.", "{o} was the founder of {s}."),
            ("Who founded {s}?", "Who was the founder of {s}?"),
            "To whom does {s} owe its beginning?",
        ),
        "opened_in": Wording(
            "year",
            ("{s} was opened in {o}.", "After a long quarrel {s} was opened in {o}."),
            ("When was {s} opened?", "In which year did {s} open?"),
            "Since which year has {s} been in business?",
        ),
        "makes": Wording(
            "goods",
            ("{s} makes {o}.", "To this day {s} makes {o}."),
            ("What does {s} make?", "What is made by {s}?"),
            "Name the product of {s}.",
        ),
        "staff": Wording(
            "number",
            ("The staff of {s} numbers {o}.", "At the last count the staff of {s} was {o}."),
            ("How many people work at {s}?", "How large is the staff of {s}?"),
            "Give the number of employees of {s}.",
        ),
        "director": Wording(
            "person",
            ("The director of {s} is {o}.", "{o} is the director of {s}."),
            ("Who is the director of {s}?", "Who leads {s}?"),
            "Who is the boss of {s}?",
        ),
        "rival": Wording(
            "company",
            ("The rival of {s} is {o}.", "{s} has {o} as its rival."),
            ("What is the rival of {s}?", "Which company is the rival of {s}?"),
            "Against which company does {s} compete?",
        ),
        "emblem": Wording(
            "animal",
            ("The emblem of {s} is a {o}.", "{s} has a {o} as its emblem."),
            ("What is the emblem of {s}?", "Which animal is the emblem of {s}?"),
            "Which creature is on the letters of {s}?",
        ),
    },
    "museum": {
        "located_in": Wording(
            "town",
            ("{s} is located in {o}.", "{s}, a quiet house, is located in {o}."),
            ("Where is {s}?", "In which town is {s} located?"),
            "To which town must one travel to visit {s}?",
        ),
        "architect": Wording(
            "person",
            ("The architect of {s} was {o}.", "{o} was the architect of {s}."),
            ("Who was the architect of {s}?", "Who designed {s}?"),
            "Who drew the plans of {s}?",
        ),
        "built_in": Wording(
            "year",
            ("{s} was built in {o}.", "The plaque says {s} was built in {o}."),
            ("When was {s} built?", "In which year was {s} built?"),
            "From which year is the building of {s}?",
        ),
        "shows": Wording(
            "goods",
            ("{s} shows old {o}.", "On two floors {s} shows {o}."),
            ("What does {s} show?", "What can be seen in {s}?"),
            "What fills the cases of {s}?",
        ),
        "keeper": Wording(
            "person",
            ("The keeper of {s} is {o}.", "{o} is the keeper of {s}."),
            ("Who is the keeper of {s}?", "Who keeps {s}?"),
            "Who looks after {s}?",
        ),
        "closing_day": Wording(
            "day",
            ("The closing day of {s} is {o}.", "{s} has {o} as its closing day."),
            ("When is the closing day of {s}?", "On which day is {s} closed?"),
            "On what day do visitors of {s} find its door locked?",
        ),
        "owner": Wording(
            "company",
            ("The owner of {s} is {o}.", "{s} has {o} as its owner."),
            ("Who is the owner of {s}?", "Which company owns {s}?"),
            "To which company does {s} belong?",
        ),
        "rooms": Wording(
            "number",
            ("The rooms of {s} number {o}.", "{s} has {o} rooms."),
            ("How many rooms has {s}?", "How many rooms are in {s}?"),
            "Through how many halls does one walk in {s}?",
        ),
    },
}
"""Type of a document's subject -> its relations."""
_ASIDES = (
    "Few letters about {s} survive.",
    "Travellers speak well of {s}.",
    "Nobody has written a longer account of {s}.",
    "Old maps do not mention {s}.",
)
_NUMBERS = {"person": 48, "town": 24, "company": 16, "museum": 12}


class Fact(NamedTuple):
    """What one sentence of the subject's document says."""

    subject: str
    relation: str
    object: str
    subject_type: str
    object_type: str


class ProseFolder:
    """Documents, and what they say, of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"prose folder {seed}")
        self._taken: set[str] = set()
        self.names = {kind: self._named(kind, count) for kind, count in _NUMBERS.items()}
        self.facts = [
            Fact(subject, relation, self._object(wording.object_type, subject), kind,
                 wording.object_type)
            for kind, subjects in self.names.items()
            for subject in subjects
            for relation, wording in RELATIONS[kind].items()
        ]  # fmt: skip
        self.facts_asked = self._rng.sample(self.facts, len(self.facts))
        self.documents = {
            subject: self._text(subject, [fact for fact in self.facts if fact.subject == subject])
            for subjects in self.names.values()
            for subject in subjects
        }

    @staticmethod
    def wordings(fact: Fact) -> tuple[str, ...]:
        """How users ask for a fact, with {s} for its subject."""
        return RELATIONS[fact.subject_type][fact.relation].asked

    @staticmethod
    def otherwise(fact: Fact) -> str:
        """The question for a fact in words that are in none of `questions`."""
        return RELATIONS[fact.subject_type][fact.relation].otherwise.format(s=fact.subject)

    def questions(self) -> list[tuple[str, str]]:
        """One question, worded at random, and its answer, for each of `facts_asked`."""
        return [
            (
                random.Random(f"{fact}").choice(self.wordings(fact)).format(s=fact.subject),
                fact.object,
            )
            for fact in self.facts_asked
        ]

    def _named(self, kind: str, count: int) -> list[str]:
        found = []
        for _ in range(count):
            name = self._word()
            found.append(
                {
                    "person": f"{name} {self._word()}",
                    "town": name,
                    "company": f"{name} Works",
                    "museum": f"the {name} Museum",
                }[kind]
            )
        return found

    def _word(self) -> str:
        while True:
            syllables = (self._rng.choice(_ONSETS) + self._rng.choice(_RIMES) for _ in range(2))
            word = "".join(syllables).capitalize()
            if word not in self._taken:
                self._taken.add(word)
                return word

    def _object(self, kind: str, subject: str) -> str:
        rng = self._rng
        match kind:
            case "year":
                return str(rng.randint(1400, 1990))
            case "number":
                return str(rng.randint(12, 990))
            case "trade":
                return rng.choice(_TRADES)
            case "instrument":
                return rng.choice(_INSTRUMENTS)
            case "goods":
                return rng.choice(_GOODS)
            case "animal":
                return rng.choice(_ANIMALS)
            case "day":
                return rng.choice(_DAYS)
            case "river":
                return self._word()
            case _:
                return rng.choice([name for name in self.names[kind] if name != subject])

    def _text(self, subject: str, facts: Sequence[Fact]) -> str:
        rng = self._rng
        said = []
        for fact in facts:
            wording = RELATIONS[fact.subject_type][fact.relation]
            said.append(rng.choice(wording.said).format(s=subject, o=fact.object))
        said += [aside.format(s=subject) for aside in rng.sample(_ASIDES, 2)]
        rng.shuffle(said)
        return " ".join(sentence[0].upper() + sentence[1:] for sentence in said)


def write(folder: ProseFolder, directory: Path) -> None:
    """Write texts/*.md, triples.jsonl and questions.jsonl into `directory`."""
    texts = directory / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for number, (title, text) in enumerate(folder.documents.items()):
        (texts / f"{number:03}.md").write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
    _write_rows(directory / "triples.jsonl", (fact._asdict() for fact in folder.facts))
    pairs = ({"question": asked, "answer": answer} for asked, answer in folder.questions())
    _write_rows(directory / "questions.jsonl", pairs)


def _write_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
