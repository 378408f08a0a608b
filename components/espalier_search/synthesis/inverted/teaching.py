"""A teacher of inverted questions: it looks for candidates, and checks every fact of each.

It knows the labels and values that the question words, and nothing of the graph: a candidate is a
name that an observation showed, and it answers with one that observations show to have every fact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from espalier.environments.demonstrations import Rejected
from espalier.records import Task
from espalier.records.folding import folded_name
from espalier.records.trajectory import Trajectory
from espalier.rewards import exact_match
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
    """A clue as the question words it: labels from the target on, and what they lead to."""

    labels: tuple[str, ...]
    value: str | Span

    def holds(self, values: Sequence[str]) -> bool:
        """Whether a line that lists `values` fulfils the clue's last label."""
        if isinstance(self.value, Span):
            return any(map(self.value.holds, values))
        return folded_name(self.value) in map(folded_name, values)


@dataclass(frozen=True, slots=True)
class ClueRoute:
    """The clues of an inverted question, in its order."""

    clues: tuple[RouteClue, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every line that proves the answer."""
        return tuple(label for clue in self.clues for label in clue.labels)


class ClueTeacher:
    """Answers inverted questions within `max_searches` searches."""

    def __init__(self, search: SearchTool, max_observation_words: int, max_searches: int) -> None:
        self._search = search
        self._max_words = max_observation_words
        self._max_searches = max_searches

    def demonstrate(self, task: Task, route: ClueRoute) -> Trajectory | Rejected:
        """The trajectory, or why there is none."""
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
        """Folded title -> the title as shown, in the order of showing."""
        self._lines: dict[tuple[str, str], tuple[str, ...]] = {}
        """(Folded title, label) -> values of the line."""
        self._refused: set[str] = set()

    def answer(self) -> str | None:
        """The first name of which every clue is seen to be true; None if nothing is left to try."""
        for query in self._queries():
            self._find(query)
            while (candidate := self._best_candidate()) is not None:
                if all(self._fulfils(candidate, clue) for clue in self._clues):
                    return self._titles[candidate]
                self._refused.add(candidate)
                self.episode.detour = WRONG_DOCUMENT
        return None

    def _queries(self) -> Iterator[str]:
        """Words that a candidate's document should have: of all clues, then of each."""
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
        """Titles that were shown with the second line of a clue, which may lead to the target."""
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
        """The shown title with most clues seen to be true and none seen to be false."""
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
        """What the line lists, searched for unless it was shown; empty where it is not shown."""
        key = (folded_name(name), label)
        if key not in self._lines:
            self._find(search_query(name, label))
        return self._lines.get(key, ())

    def _find(self, query: str) -> None:
        """Search, unless that was done, and keep every whole line that is shown."""
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
