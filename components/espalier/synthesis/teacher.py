"""A teacher that executes the plan of a query through the real search tool.

It knows the route (names in the question, labels of the relations), never the graph: every name it
types and every answer it gives was read in an observation before.
"""

from __future__ import annotations

import random

from espalier.knowledge.folding import folded_name
from espalier.knowledge.search import SearchTool
from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rewards import exact_match
from espalier.synthesis import plans
from espalier.synthesis.detours import KINDS, Lookup, detour_query
from espalier.synthesis.episode import TeacherEpisode
from espalier.synthesis.observations import values
from espalier.synthesis.rejection import Rejected
from espalier.synthesis.routes import Arm, Route

MAX_SEARCHES_BEFORE_DETOUR = 4
"""Longer routes take no detour: an episode's limit on turns and tokens would cut them off."""


class _Lost(Exception):
    """The walk cannot go on; becomes a `Rejected` at the teacher's door."""


class RouteTeacher:
    """Walks routes; with `detour_kind`, one mistake of that kind is made and mended."""

    def __init__(self, search: SearchTool, max_observation_words: int, seed: int) -> None:
        self._search = search
        self._max_words = max_observation_words
        self._seed = seed

    def demonstrate(self, task: Task, route: Route, detour_kind: str = "") -> Trajectory | Rejected:
        """The trajectory, if the answer that was read is right."""
        walk = _Walk(TeacherEpisode(task, self._search), route, self._max_words)
        if detour_kind and len(route.labels) <= MAX_SEARCHES_BEFORE_DETOUR:
            walk.plan_detour(detour_kind, random.Random(f"{self._seed}/{task.task_id}/detour"))
        try:
            answer = walk.answer()
        except _Lost as lost:
            return Rejected(str(lost))
        if not exact_match(answer, task.verifier.gold):
            return Rejected("wrong_answer")
        return walk.episode.answered(answer)


class _Walk:
    def __init__(self, episode: TeacherEpisode, route: Route, max_words: int) -> None:
        self.episode = episode
        self._route = route
        self._max_words = max_words
        self._position = 0
        self._previous_name = ""
        self._detours: dict[int, str] = {}
        self._rng = random.Random(0)

    def plan_detour(self, kind: str, rng: random.Random) -> None:
        """Make a mistake of `kind`, or of another kind where that one fails, at a random search."""
        first = rng.randrange(len(self._route.labels))
        for position in range(first, len(self._route.labels)):
            self._detours[position] = kind
        self._rng = rng

    def answer(self) -> str:
        """Walk the whole route."""
        return self._value_of(self._route)

    def _value_of(self, route: Route) -> str:
        """Walk every arm, intersect what they list, and follow the tail."""
        reached = [self._end_of(arm) for arm in route.arms]
        shared = [
            value for value in reached[0] if all(_lists(other, value) for other in reached[1:])
        ]
        value = _only(shared)
        for label in route.tail:
            value = _only(self._read(value, label))
        return value

    def _end_of(self, arm: Arm) -> list[str]:
        listed: list[str] = []
        for name in (self._value_of(arm.start),) if arm.start else arm.names:
            for label in arm.labels[:-1]:
                name = _only(self._read(name, label))
            listed.extend(self._read(name, arm.labels[-1]))
        return listed

    def _read(self, name: str, label: str) -> list[str]:
        """Search for the line and return what it lists."""
        remaining = self._route.labels[self._position :]
        thought = plans.remaining_hops(remaining)
        if self._position in self._detours and not self.episode.detour:
            lookup = Lookup(name, label, self._previous_name, remaining[1:])
            self._stray(lookup, thought)
        observation = self.episode.search(thought, plans.search_query(name, label))
        found = values(observation, name, label)
        if found is None:
            raise _Lost("line_not_shown")
        if len(observation.split()) >= self._max_words and observation.endswith(found[-1]):
            raise _Lost("observation_cut")
        self._position += 1
        self._previous_name = name
        return list(found)

    def _stray(self, lookup: Lookup, thought: str) -> None:
        wanted = self._detours[self._position]
        is_last_chance = self._position == len(self._route.labels) - 1
        others = self._rng.sample(KINDS, len(KINDS)) if is_last_chance else ()
        for kind in (wanted, *others):
            query = detour_query(lookup, kind, self.episode.peek, self._rng)
            if query is not None:
                self.episode.search(thought, query)
                self.episode.detour = kind
                return


def _only(listed: list[str]) -> str:
    if len(listed) != 1:
        raise _Lost("several_values" if listed else "lists_share_nothing")
    return listed[0]


def _lists(listed: list[str], value: str) -> bool:
    return folded_name(value) in map(folded_name, listed)
