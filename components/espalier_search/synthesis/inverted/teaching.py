"""A teacher for inverted questions, which looks for candidates and checks every fact of each.

It knows the labels and values in the question, but not the graph. A candidate is a name in an
observation, and the answer is a candidate for which observations prove every fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from espalier.environments.demonstrations import Rejected
from espalier.records import Task
from espalier.records.folding import folded_name
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.inverted.clues import Span
from espalier_search.synthesis.search_wording import (
    VALUE_SEPARATOR,
    remaining_hops,
    search_query,
    shown_hits,
)
from espalier_search.synthesis.teacher import WRONG_DOCUMENT, TeacherEpisode


@dataclass(frozen=True, slots=True)
class RouteClue:
    """A clue in the words of the question: labels from the target on, and the value at the end."""

    labels: tuple[str, ...]
    value: str | Span

    def holds(self, values: Sequence[str]) -> bool:
        """Whether the clue fits, if its last line lists `values`."""
        if isinstance(self.value, Span):
            return any(map(self.value.holds, values))
        return folded_name(self.value) in map(folded_name, values)


@dataclass(frozen=True, slots=True)
class ClueRoute:
    """The clues of an inverted question, in the order of the question."""

    clues: tuple[RouteClue, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every line that proves the answer."""
        return tuple(label for clue in self.clues for label in clue.labels)


class ClueTeacher:
    """A teacher that answers inverted questions within `max_searches` searches."""

    def __init__(self, search: SearchTool, max_observation_words: int, max_searches: int) -> None:
        self._search = search
        self._max_words = max_observation_words
        self._max_searches = max_searches

    def demonstrate(self, task: Task, route: ClueRoute) -> Trajectory | Rejected:
        """The trajectory, or the reason why there is none."""
        hunt = _Hunt(TeacherEpisode(task, self._search), route, self._max_words, self._max_searches)
        try:
            answer = hunt.answer()
        except _OutOfSearchesError:
            return Rejected("candidate_not_found")
        if answer is None:
            return Rejected("no_candidate_left")
        if not exact_match(answer, task.verifier.gold):
            return Rejected("wrong_answer")
        return hunt.episode.answered(answer)


class _OutOfSearchesError(Exception):
    """The budget is spent; `demonstrate` turns it into a `Rejected`."""


class _Hunt:
    def __init__(
        self, episode: TeacherEpisode, route: ClueRoute, max_words: int, max_searches: int
    ) -> None:
        self.episode = episode
        self._clues = route.clues
        self._max_words = max_words
        self._left = max_searches
        self._made: set[str] = set()
        self._titles: dict[str, str] = {}
        """Folded title -> title as shown, in order of appearance."""
        self._lines: dict[tuple[str, str], tuple[str, ...]] = {}
        """(Folded title, label) -> values of the line."""
        self._refused: set[str] = set()

    def answer(self) -> str | None:
        """The first name that every clue is shown to fit; None if no candidate is left."""
        for query in self._queries():
            self._find(query)
            while (candidate := self._best_candidate()) is not None:
                if all(self._fulfils(candidate, clue) for clue in self._clues):
                    return self._titles[candidate]
                self._refused.add(candidate)
                self.episode.detour = WRONG_DOCUMENT
        return None

    def _queries(self) -> Iterator[str]:
        """Queries of words in the document of a candidate: of all clues, then of each clue."""
        direct = [c for c in self._clues if len(c.labels) == 1 and isinstance(c.value, str)]
        if len(direct) > 1:
            yield " ".join(search_query(str(clue.value), clue.labels[0]) for clue in direct)
        for clue in direct:
            yield search_query(str(clue.value), clue.labels[0])
        for clue in self._clues:
            if len(clue.labels) > 1 and isinstance(clue.value, str):
                yield search_query(clue.value, clue.labels[1])
                for name in self._having(clue):
                    yield search_query(name, clue.labels[0])
        yield remaining_hops([clue.labels[0] for clue in self._clues]).replace(" , ", " ")

    def _having(self, clue: RouteClue) -> list[str]:
        """Names for which the second line of a clue fits; the first line may lead there."""
        found = [
            self._titles[title]
            for (title, label), values in self._lines.items()
            if label == clue.labels[1] and clue.holds(values)
        ]
        listed = [
            value
            for (title, _), values in self._lines.items()
            if title == folded_name(str(clue.value))
            for value in values
        ]
        return list(dict.fromkeys((*found, *listed)))

    def _best_candidate(self) -> str | None:
        """The title with the most fitting clues among those without a clue shown not to fit."""
        scored: list[tuple[int, str]] = []
        for title in self._titles:
            if title in self._refused:
                continue
            seen = [
                clue.holds(values)
                for clue in self._clues
                if (values := self._lines.get((title, clue.labels[0]))) is not None
                and len(clue.labels) == 1
            ]
            has_first = any((title, clue.labels[0]) in self._lines for clue in self._clues)
            if has_first and all(seen):
                scored.append((sum(seen), title))
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    def _fulfils(self, candidate: str, clue: RouteClue) -> bool:
        names: Sequence[str] = (self._titles[candidate],)
        for label in clue.labels[:-1]:
            names = [value for name in names for value in self._line(name, label)]
        return any(clue.holds(self._line(name, clue.labels[-1])) for name in names)

    def _line(self, name: str, label: str) -> tuple[str, ...]:
        """Values of the line, searched for unless it was shown before; empty if it is not shown."""
        key = (folded_name(name), label)
        if key not in self._lines:
            self._find(search_query(name, label))
        return self._lines.get(key, ())

    def _find(self, query: str) -> None:
        """Search, unless this query was made before, and keep every whole line shown."""
        if folded_name(query) in self._made:
            return
        if not self._left:
            raise _OutOfSearchesError
        self._left -= 1
        self._made.add(folded_name(query))
        unseen = [
            label
            for clue in self._clues
            for label in clue.labels
            if label not in {known for _, known in self._lines}
        ]
        thought = remaining_hops(unseen or [self._clues[-1].labels[-1]])
        observation = self.episode.search(thought, query)
        is_cut = len(observation.split()) >= self._max_words
        hits = shown_hits(observation)
        for hit in hits:
            title = folded_name(hit.title)
            self._titles.setdefault(title, hit.title)
            lines = hit.lines[:-1] if is_cut and hit is hits[-1] else hit.lines
            for line in lines:
                label, separator, listed = line.partition(": ")
                if separator:
                    self._lines[title, label] = tuple(listed.split(VALUE_SEPARATOR))
