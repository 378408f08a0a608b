"""A teacher that answers a query by following its route with the real search tool.

It knows the route (names in the question, labels of relations) but not the graph: every other name
in its searches, and its answer, comes from an observation. Of prose it is told which of the names
that an observation shows is the one that a triple says, and no name that none shows. On request it
makes a mistake first (a detour) and recovers from it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from espalier.environments.demonstrations import Rejected
from espalier.records import FinalAnswer, Message, Task, ToolCalls
from espalier.records.folding import folded_name
from espalier.records.knowledge import KnowledgeGraph
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import NO_RESULTS, SearchTool
from espalier_search.synthesis.search_wording import (
    READY_TO_ANSWER,
    joint_label,
    joint_query,
    joint_title,
    listed_values,
    remaining_hops,
    search_call,
    search_query,
    shown_hits,
)
from espalier_search.synthesis.webshaper.candidate import StatedTriples
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
)


class TeacherEpisode:
    """One attempt at one task with the real search tool."""

    def __init__(self, task: Task, search: SearchTool) -> None:
        self._task = task
        self._search = search
        self._messages = list(task.prompt)
        self._results: list[ToolResult] = []
        self.detour = ""

    def search(self, thought: str, query: str) -> str:
        """Search, record call and result, and return the observation."""
        observation = self._search.observation(query)
        action = search_call(thought, query)
        self._say(action)
        self._messages.append(Message(role="tool", content=observation))
        found = observation != NO_RESULTS
        self._results.append(ToolResult(call=action.calls[0], content=observation, succeeded=found))
        return observation

    def peek(self, query: str) -> str:
        """The observation of a search, without recording it."""
        return self._search.observation(query)

    def answered(self, answer: str, *, outcome: float = 1.0) -> Trajectory:
        """End with `answer`; `outcome` is 1.0 or 0.0, verified by the caller."""
        self._say(FinalAnswer(answer, READY_TO_ANSWER))
        return Trajectory(
            task_id=self._task.task_id,
            group_id=f"teacher/{self._task.task_id}",
            messages=tuple(self._messages),
            tool_results=tuple(self._results),
            reward={"outcome": outcome},
            answer=answer,
            finish_reason=FinishReason.ANSWERED,
            policy_version=0,
            detour=self.detour,
        )

    def _say(self, action: ToolCalls | FinalAnswer) -> None:
        self._messages.append(action.message())


@dataclass(frozen=True, slots=True)
class Arm:
    """A path that starts at each of `names` and follows `labels`; the last line may be a list.

    If `start` is given, `names` is empty, and the arm starts at the value of that route.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    start: Route | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Arms that are walked to their ends, and the `tail` to follow from the value they share."""

    arms: tuple[Arm, ...]
    tail: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every search, in order, if each list is read."""
        return self.searches(jointly=False)

    def searches(self, *, jointly: bool) -> tuple[str, ...]:
        """The label of every search, in order.

        Args:
            jointly: the lists at the ends of the arms are not read; one search finds the document
                that mentions all entities whose lists would contain it.
        """
        joins = jointly and len(self.arms) > 1
        walked: list[str] = []
        for arm in self.arms:
            walked += arm.start.searches(jointly=jointly) if arm.start else ()
            walked += arm.labels[: -1 if joins else None] * (1 if arm.start else len(arm.names))
        return (*walked, *((self.joint_label,) if joins else ()), *self.tail)

    @property
    def last_labels(self) -> list[str]:
        """The label of the list that each arm ends with."""
        return [arm.labels[-1] for arm in self.arms]

    @property
    def joint_label(self) -> str:
        """The label of the one search that replaces reading the lists at the ends of the arms."""
        return joint_label(self.last_labels)


def route_of(query: Query, graph: KnowledgeGraph) -> Route:
    """The route of a chain, or of an intersection of routes followed by a chain.

    Raises:
        TypeError: a union of projections; it can be evaluated, but no teacher walks it.
    """
    labels: list[str] = []
    while isinstance(query, Projection):
        labels.insert(0, graph.relations[query.relation].label)
        query = query.inner
    if isinstance(query, Intersection):
        arms: list[Arm] = []
        for part in query.parts:
            route = route_of(part, graph)
            if route.tail:
                arm = Arm((), route.tail, Route(route.arms, ()))  # begins at an intersection
            else:
                (arm,) = route.arms
            arms.append(arm)
        return Route(tuple(arms), tuple(labels))
    if isinstance(query, Constant | ConstantSet):
        ids = (query.entity_id,) if isinstance(query, Constant) else query.entity_ids
        names = tuple(graph.entities[entity_id].name for entity_id in ids)
        return Route((Arm(names, tuple(labels)),), ())
    raise TypeError(f"no route for {type(query).__name__}: no teacher walks a union of projections")


ReadValues = Callable[[str, str, str], Sequence[str] | None]
"""Observation, title, label -> the values that the observation shows; None if it shows none."""

EMPTY_RESULT = "empty_result"
WRONG_DOCUMENT = "wrong_document"
BAD_QUERY = "bad_query"
DETOUR_KINDS = (BAD_QUERY, EMPTY_RESULT, WRONG_DOCUMENT)
"""An observation of the right document without the line, of nothing, of another document."""

_LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Lookup:
    """The correct search, before which a detour is made."""

    name: str
    label: str
    previous_name: str
    """The entity whose document was read before; "" at the first search."""
    later_labels: tuple[str, ...]
    read: ReadValues = listed_values


def detour_query(
    lookup: Lookup, kind: str, observe: Callable[[str], str], rng: random.Random
) -> str | None:
    """A query that fails as `kind` says, tried with the real tool; None if none does."""
    for query in _WRONG_QUERIES[kind](lookup, rng):
        if detour_kind_of(observe(query), lookup) == kind:
            return query
    return None


def detour_kind_of(observation: str, lookup: Lookup) -> str:
    """The kind of detour that an observation shows; "" if it shows the line."""
    if observation == NO_RESULTS:
        return EMPTY_RESULT
    if lookup.read(observation, lookup.name, lookup.label) is not None:
        return ""
    titles = {folded_name(hit.title) for hit in shown_hits(observation)}
    return BAD_QUERY if folded_name(lookup.name) in titles else WRONG_DOCUMENT


def misspelled(name: str, rng: random.Random) -> str:
    """The name with two letters of its longest word swapped, or one left out."""
    word = max(_LETTERS.findall(name), key=len, default=name)
    start = name.index(word)
    first = 1 if len(word) > 2 else 0  # a longer word keeps its first letter
    position = start + rng.randrange(first, max(len(word) - 1, 1))
    before, here, after = name[:position], name[position], name[position + 1 :]
    changed = before + after if rng.random() < 0.5 else before + after[:1] + here + after[1:]
    return changed or name  # nothing remains of a single letter


def _bad_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    later = list(dict.fromkeys(lookup.later_labels[::-1]))
    for label in later:
        yield search_query(lookup.name, label)
    yield lookup.name


def _empty_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    for _ in range(8):
        yield misspelled(lookup.name, rng)


def _stray_queries(lookup: Lookup, rng: random.Random) -> Iterator[str]:
    if lookup.previous_name:
        yield search_query(lookup.previous_name, lookup.label)
    for _ in range(4):
        yield search_query(misspelled(lookup.name, rng), lookup.label)
    yield lookup.label


_WRONG_QUERIES: dict[str, Callable[[Lookup, random.Random], Iterator[str]]] = {
    BAD_QUERY: _bad_queries,
    EMPTY_RESULT: _empty_queries,
    WRONG_DOCUMENT: _stray_queries,
}


_MAX_WORDING = 4
"""Words of the documents in a search that replaces one for a label."""
MAX_SEARCHES_BEFORE_DETOUR = 4
"""Longer routes take no detour, because it would exceed an episode's limit on turns or tokens."""


class _WalkEnded(Exception):
    """The route cannot be followed further; `demonstrate` turns it into a `Rejected`."""


class RouteTeacher:
    """A teacher that follows routes; with `detour_kind` it first makes one mistake of that kind.

    For a route that joins lists it searches for a document that mentions all the entities whose
    lists they are, and reads the lists only if there is no such document.

    If a search for the label of a relation does not show a user's prose that states it, one more
    search of an episode is for the words that such sentences have in the documents: "Ada spouse",
    then "Ada married".
    """

    def __init__(
        self,
        search: SearchTool,
        max_observation_words: int,
        seed: int,
        statements: StatedTriples | None = None,
    ) -> None:
        self._search = search
        self._max_words = max_observation_words
        self._seed = seed
        self._statements = statements

    def demonstrate(self, task: Task, route: Route, detour_kind: str = "") -> Trajectory | Rejected:
        """The trajectory, or why there is none: a line was not shown, or the answer was wrong."""
        ways = (False,) if route.searches(jointly=True) == route.labels else (True, False)
        outcomes = (self._walked(task, route, detour_kind, jointly=way) for way in ways)
        rejected = Rejected("")
        for outcome in outcomes:
            if not isinstance(outcome, Rejected):
                return outcome
            rejected = outcome
        return rejected

    def _walked(
        self, task: Task, route: Route, detour_kind: str, *, jointly: bool
    ) -> Trajectory | Rejected:
        episode = TeacherEpisode(task, self._search)
        walk = _Walk(episode, route, self._max_words, self._statements, jointly=jointly)
        if detour_kind and len(walk.labels) <= MAX_SEARCHES_BEFORE_DETOUR:
            walk.plan_detour(detour_kind, random.Random(f"{self._seed}/{task.task_id}/detour"))
        try:
            answer = walk.answer()
        except _WalkEnded as lost:
            return Rejected(str(lost))
        if not exact_match(answer, task.verifier.gold):
            return Rejected("wrong_answer")
        return episode.answered(answer)


class _Walk:
    def __init__(
        self,
        episode: TeacherEpisode,
        route: Route,
        max_words: int,
        statements: StatedTriples | None,
        *,
        jointly: bool,
    ) -> None:
        self.episode = episode
        self.labels = route.searches(jointly=jointly)
        self._route = route
        self._jointly = jointly
        self._max_words = max_words
        self._values = statements.shown if statements else listed_values
        self._statements = statements
        self._position = 0
        self._previous_name = ""
        self._detours: dict[int, str] = {}
        self._rng = random.Random(0)

    def plan_detour(self, kind: str, rng: random.Random) -> None:
        """Plan one mistake of `kind` at the first search with a fitting query from a random one."""
        first = rng.randrange(len(self.labels))
        for position in range(first, len(self.labels)):
            self._detours[position] = kind
        self._rng = rng

    def answer(self) -> str:
        """Walk the whole route."""
        return self._value_of(self._route)

    def _value_of(self, route: Route) -> str:
        """Walk every arm, find the value they share, and follow the tail."""
        if self._jointly and len(route.arms) > 1:
            value = self._found_jointly(route)
        else:
            reached: list[list[str]] = []
            for arm in route.arms:
                listed: list[str] = []
                for name in self._names_of(arm):
                    listed.extend(self._read(self._host_of(name, arm), arm.labels[-1]))
                reached.append(listed)
            others = [set(map(folded_name, names)) for names in reached[1:]]
            shared = [
                value
                for value in reached[0]
                if all(folded_name(value) in other for other in others)
            ]
            value = _only(shared)
        for label in route.tail:
            value = _only(self._read(value, label))
        return value

    def _found_jointly(self, route: Route) -> str:
        """The value that the lists of all arms share, found by one search for their entities."""
        ends = [[self._host_of(name, arm) for name in self._names_of(arm)] for arm in route.arms]
        thought = self._thought()
        for names in product(*ends):
            observation = self.episode.search(thought, joint_query(names, route.last_labels))
            if title := joint_title(observation, names):
                self._position += 1
                self._previous_name = ""
                return title
        raise _WalkEnded("nothing_lists_all")

    def _names_of(self, arm: Arm) -> tuple[str, ...]:
        return (self._value_of(arm.start),) if arm.start else arm.names

    def _host_of(self, name: str, arm: Arm) -> str:
        """The entity whose list ends the arm: follow all labels but the last from `name`."""
        for label in arm.labels[:-1]:
            name = _only(self._read(name, label))
        return name

    def _thought(self) -> str:
        return remaining_hops(self.labels[self._position :])

    def _read(self, name: str, label: str) -> list[str]:
        """Search for the line and return its values."""
        thought = self._thought()
        if self._position in self._detours and not self.episode.detour:
            later = self.labels[self._position + 1 :]
            self._stray(Lookup(name, label, self._previous_name, later, self._values), thought)
        observation = self.episode.search(thought, search_query(name, label))
        found = self._values(observation, name, label)
        if found is None and (query := self._reworded(name, label)):
            self.episode.detour = BAD_QUERY
            observation = self.episode.search(thought, query)
            found = self._values(observation, name, label)
        if found is None:
            raise _WalkEnded("line_not_shown")
        # the value at the end of a full observation may have been cut off
        if len(observation.split()) >= self._max_words and observation.endswith(found[-1]):
            raise _WalkEnded("observation_cut")
        self._position += 1
        self._previous_name = name
        return list(found)

    def _reworded(self, name: str, label: str) -> str:
        """A query in the words of the documents; "" if there is none, or no room for a detour."""
        if self.episode.detour or len(self.labels) > MAX_SEARCHES_BEFORE_DETOUR:
            return ""
        said = self._statements.wording(label)[:_MAX_WORDING] if self._statements else ()
        return " ".join((name, *said)) if said else ""

    def _stray(self, lookup: Lookup, thought: str) -> None:
        wanted = self._detours[self._position]
        is_last_chance = self._position == len(self.labels) - 1
        others = self._rng.sample(DETOUR_KINDS, len(DETOUR_KINDS)) if is_last_chance else ()
        for kind in (wanted, *others):
            query = detour_query(lookup, kind, self.episode.peek, self._rng)
            if query is not None:
                self.episode.search(thought, query)
                self.episode.detour = kind
                return


def _only(listed: list[str]) -> str:
    if len(listed) != 1:
        raise _WalkEnded("several_values" if listed else "lists_share_nothing")
    return listed[0]
