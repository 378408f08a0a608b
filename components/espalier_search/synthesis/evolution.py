"""New questions after failed or rewarding ones: variations of their patterns, proven on the graph.

A variation of a pattern has other entities, one hop more or one hop less:

currency(country(C))      one hop more     capital_currency(country(nearest(C))), ...
                          one hop less     country(C), currency(C)

Every answer is proven on the graph by the rules of all questions. Entities are those of the
training split; no query or wording of a dev or held-out question is used.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from espalier.config import Profile
from espalier.environments.funnel import Funnel
from espalier.environments.proposals import ProposalRequest, ProposedTasks, weight_of
from espalier.records import DataError, Task, read_tasks
from espalier.records.knowledge import KnowledgeGraph
from espalier_search.synthesis.questions import FormalQuestions
from espalier_search.synthesis.task_making import formal_question
from espalier_search.synthesis.webshaper.candidate import CandidateQuestion, World
from espalier_search.synthesis.webshaper.generator import not_of_split
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Query,
    canonical,
    signature,
)
from espalier_search.synthesis.webshaper.rules import broken_rule
from espalier_search.synthesis.webshaper.steps import (
    Chain,
    Join,
    RelationPath,
    Steps,
    chains,
    intersections,
    inverse_pairs,
    project,
    unions,
)

Pattern = Chain | Join
Variation = Literal["other_entities", "one_hop_more", "one_hop_less"]
_LONGEST_CHAIN = 5
"""Relations in a chain at most: one more than in the longest chain that synthesis draws."""


class Patterns:
    """Every pattern that questions are drawn from, and each with one more hop, by signature."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph

    def of(self, signature_text: str) -> Pattern | None:
        """The pattern with this signature; None if it is of another shape."""
        return self._by_signature.get(signature_text)

    def variations(self, pattern: Pattern) -> dict[Variation, list[Pattern]]:
        """The pattern itself, and those with one projection more or less whose kinds fit."""
        found: dict[Variation, list[Pattern]] = {"other_entities": [pattern]}
        if isinstance(pattern, Chain):
            if len(pattern.path) < _LONGEST_CHAIN:
                found["one_hop_more"] = [Chain(path) for path in self._longer(pattern.path)]
            shorter = (pattern.path[1:], pattern.path[:-1])
            found["one_hop_less"] = [Chain(path) for path in dict.fromkeys(shorter) if path]
        else:
            if len(pattern.tail) < _longest_tail(pattern):
                found["one_hop_more"] = self._with_longer_tail(pattern)
            # without a tail, arms of one projection would put constants beside the target
            if len(pattern.tail) == _longest_tail(pattern):
                found["one_hop_less"] = [replace(pattern, tail=pattern.tail[:-1])]
        return {variation: patterns for variation, patterns in found.items() if patterns}

    @cached_property
    def _by_signature(self) -> Mapping[str, Pattern]:
        lengths = range(1, _LONGEST_CHAIN + 1)
        joins = [*intersections(self._graph), *unions(self._graph)]
        patterns: list[Pattern] = [c for length in lengths for c in chains(self._graph, length)]
        patterns += [*joins, *(longer for join in joins for longer in self._with_longer_tail(join))]
        by_signature: dict[str, Pattern] = {}
        for pattern in patterns:
            by_signature.setdefault(signature(_specimen(pattern)), pattern)
        return by_signature

    @cached_property
    def _inverses(self) -> set[tuple[str, str]]:
        return inverse_pairs(self._graph)

    def _longer(self, path: RelationPath) -> list[RelationPath]:
        """`path` with one more relation at either end."""
        first = self._graph.relations[path[0]]
        before = [
            (name, *path)
            for name, relation in sorted(self._graph.relations.items())
            if relation.object_kind == first.subject_kind and (name, path[0]) not in self._inverses
        ]
        return before + [(*path, name) for name in self._following(path[-1])]

    def _with_longer_tail(self, join: Join) -> list[Pattern]:
        """`join` with one more projection at its end."""
        last = (*join.arms[0], *join.tail)[-1]
        return [replace(join, tail=(*join.tail, name)) for name in self._following(last)]

    def _following(self, relation: str) -> list[str]:
        """Relations that can follow `relation` and do not lead back."""
        kind = self._graph.relations[relation].object_kind
        return [
            name
            for name, following in sorted(self._graph.relations.items())
            if following.subject_kind == kind and (relation, name) not in self._inverses
        ]


def _longest_tail(join: Join) -> int:
    """Length of a varied tail, one more than in drawn joins; long arms are drawn without a tail."""
    return 1 if len(join.arms[0]) > 1 else 2


def _specimen(pattern: Pattern) -> Query:
    """A query of the pattern's shape with placeholder constants, to compute its signature."""
    if isinstance(pattern, Chain):
        return project(pattern.path, Constant("a"))
    start: Query = ConstantSet(("a", "b")) if pattern.with_union else Constant("a")
    arms = (project(pattern.arms[0], start), project(pattern.arms[1], Constant("c")))
    return project(pattern.tail, Intersection(arms))


class Prover:
    """Proves queries on the graph of a knowledge artifact, and makes training tasks of them."""

    def __init__(
        self, profile: Profile, knowledge: Path, accepted: Path, *, source: str = ""
    ) -> None:
        """Read the graph, and the dev and held-out questions that must not be asked.

        Args:
            profile: profile of the run.
            knowledge: the artifact of `ingest`.
            accepted: artifact with the tasks of every split.
            source: source given in the tasks; "" is the name of the profile's self-play.

        Raises:
            ArtifactError: an artifact is broken.
            DataError: the knowledge has no triples.
        """
        self.graph = KnowledgeGraph.load(knowledge)
        if not self.graph.relations:
            raise DataError(
                f"{knowledge}: has no triples, by which self-play and hindsight prove their tasks. "
                'Give knowledge.triples, or set self_play.name = "off" and leave out '
                "[warm_start.hindsight]"
            )
        self._profile = profile
        self._source = source or profile.self_play.name
        self._knowledge = knowledge
        apart = [
            task
            for split in ("dev", "heldout")
            for task in read_tasks(accepted / "tasks" / f"{split}.jsonl")
        ]
        self._apart_queries = {str(task.extra.get("query", "")) for task in apart} - {""}
        self._apart_questions = {_folded(task.question) for task in apart}

    @cached_property
    def steps(self) -> Steps:
        """The edges that a training question may use."""
        return Steps(self.graph, "train")

    def proven(self, query: Query, asked: Set[str]) -> Task | str:
        """The task of `query`, or the reason to refuse it; `asked` holds earlier queries."""
        text = canonical(query)
        if text in self._apart_queries:
            return "asked_in_dev_or_heldout"
        if text in asked:
            return "asked_before"
        candidate = CandidateQuestion(query, self.world)
        fault = broken_rule(candidate) or not_of_split(candidate, self.steps)
        if fault:
            return fault
        question = formal_question(candidate, "train", self._profile.seed, self._source)
        assert question.route is not None, "a formal question has a route"
        if len(question.route.labels) >= self._profile.episode.max_turns:
            return "too_long_for_an_episode"
        if _folded(question.task.question) in self._apart_questions:
            return "worded_as_in_dev_or_heldout"
        return question.task

    @cached_property
    def world(self) -> World:
        """The graph and documents by which training questions are judged."""
        formal = FormalQuestions(self._profile, self._knowledge, self.graph, Funnel())
        return formal.world("train")


def _folded(question: str) -> str:
    return " ".join(question.lower().split())


_DRAWS_PER_TASK = 40
"""Draws per wanted task, after which a phase goes on with fewer tasks. A good pattern has one in
two or three draws accepted, a bad one none."""


Beginnings = Callable[[ProposalRequest, random.Random], Iterator[str]]
"""An endless stream of signatures to vary; empty if an order has no task to start from."""


def failed_patterns(order: ProposalRequest, rng: random.Random) -> Iterator[str]:
    """Patterns of failed tasks, drawn uniformly over the tasks (WebRL)."""
    while order.failed:
        yield rng.choice(order.failed).metadata.pattern


def rewarding_patterns(order: ProposalRequest, rng: random.Random) -> Iterator[str]:
    """Patterns of known tasks, weighted by the mean reward of their tasks (R-Zero)."""
    kinds = list(dict.fromkeys(task.metadata.pattern for task in order.known))
    weights = [weight_of([order.earned[k]] if k in order.earned else []) for k in kinds]
    while kinds:
        yield rng.choices(kinds, weights)[0]


class GraphProposer:
    """A `TaskProposer` that draws new questions from the graph."""

    def __init__(self, prover: Prover, beginnings: Beginnings) -> None:
        self._prover = prover
        self._beginnings = beginnings
        self._patterns = Patterns(prover.graph)

    def propose(self, order: ProposalRequest) -> ProposedTasks:
        """Propose variations of the order's patterns, with proven answers."""
        return proven_of(self._drawn(order), order, self._prover)

    def _drawn(self, order: ProposalRequest) -> Iterator[Query | str]:
        """Varied queries, or the reason why a signature has no variation."""
        rng = random.Random(order.seed)
        sources: dict[Pattern, Iterator[Query]] = {}
        draws = order.num_tasks * _DRAWS_PER_TASK
        for signature_text in islice(self._beginnings(order, rng), draws):
            pattern = self._patterns.of(signature_text)
            if pattern is None:
                yield "pattern_of_another_shape"
                continue
            variations = self._patterns.variations(pattern)
            chosen = rng.choice(variations[rng.choice(list(variations))])
            if chosen not in sources:
                draw = random.Random(rng.getrandbits(48))
                sources[chosen] = chosen.queries(self._prover.steps, draw)
            query = next(sources[chosen], None)
            if query is not None:  # one pattern may be exhausted before the others
                yield query


def proven_of(
    proposals: Iterable[Query | str], order: ProposalRequest, prover: Prover
) -> ProposedTasks:
    """The first proposals that can be proven, up to the number of tasks requested.

    Args:
        proposals: queries, or the reasons why a proposal is not a query.
        order: the number of tasks, and the known tasks.
        prover: proves the queries and words them as questions.
    """
    refused: Counter[str] = Counter()
    asked = {str(task.extra.get("query", "")) for task in order.known}
    tasks: list[Task] = []
    for proposal in proposals:
        found = proposal if isinstance(proposal, str) else prover.proven(proposal, asked)
        if isinstance(found, str):
            refused[found] += 1
            continue
        asked.add(str(found.extra["query"]))
        tasks.append(found)
        if len(tasks) == order.num_tasks:
            break
    return ProposedTasks(tasks, refused)
