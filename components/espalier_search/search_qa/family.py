"""Question answering with a search tool (Search-R1, Jin et al. 2025, arXiv:2503.09516).

The policy calls `search(query)`, reads what the search tool shows of the best documents, and
answers. Questions come from formal queries over the triples, or are the user's own. [search]
configures the tool.

Parsing a profile imports this module, so imports that only one stage needs are inside methods.
"""

from __future__ import annotations

import random
import string
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from espalier.config import (
    ClosedBook,
    EnvironmentConfig,
    Profile,
    ReadsKnowledge,
    RZeroConfig,
    WebRLConfig,
)
from espalier.environments.contract import Environments, EnvironmentsOver
from espalier.environments.demonstrations import Rejected
from espalier.environments.family import Family
from espalier.environments.funnel import Funnel
from espalier.environments.hindsight import Hindsight
from espalier.environments.mixins import (
    AgentTexts,
    Demonstrate,
    FamilyQuestion,
    HasBenchmarks,
    KnowsEntities,
    LooksAnswersUp,
    MakesCanaries,
    MakesQuestions,
    ProposesTasks,
    RelabelsFailures,
    Renames,
    Renaming,
    SearchesAddedLines,
    TaskRenaming,
    Teacher,
    TeachesReading,
    WritesAgentTexts,
)
from espalier.environments.proposals import TaskProposer
from espalier.environments.reading import ReadingMaterial
from espalier.environments.text_index import TextIndex
from espalier.environments.tools import Tool, ToolOutput
from espalier.records import Draft, Split, Task, Tracker
from espalier.records.knowledge import EntitySplits, KnowledgeGraph, load_documents
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import NO_RESULTS, SearchTool, documents_path
from espalier_search.search_qa.benchmarks import (
    answer_scores,
    read_paragraphs,
    read_questions,
)
from espalier_search.search_qa.invented_names import FEW_NAMES
from espalier_search.search_qa.other_names import WorldMaker, names_of
from espalier_search.synthesis.search_wording import SEARCH_TOOL
from espalier_search.synthesis.task_making import RoutedTask, fact_of
from espalier_search.synthesis.teacher import DETOUR_KINDS


class SearchQAConfig(EnvironmentConfig):
    """Question answering over the knowledge."""

    name: str = "search_qa"


INSTRUCTIONS = (
    "Answer the question. Search as often as you need to. Give only the name as the final answer.\n"
)

CLOSED_BOOK = ClosedBook(
    "Answer the question from memory. Give only the name as the answer.\n",
    # facts that no knowledge source of ours contains, so that no example gives an answer away
    examples=(
        ("Who wrote Hamlet?", "William Shakespeare"),
        ("Name the chemical symbol of gold.", "Au"),
        ("What is the planet closest to the Sun?", "Mercury"),
    ),
)


class Searcher(Protocol):
    """The part of a search index that the tool needs."""

    def observation(self, query: str) -> str:
        """Return what the agent reads after searching for `query`."""
        ...


def search_tool(searcher: Searcher) -> Tool:
    """Return the tool `search` over an index."""

    def search(query: str, task: Task) -> ToolOutput:
        """Search the documents."""
        names = names_of(task)
        found = searcher.observation(query if names is None else names.meant(query))
        succeeded = found != NO_RESULTS
        if names is not None and succeeded:
            found = names.shown(found)
        return ToolOutput(found, succeeded=succeeded)

    return Tool(search, call_tag=SEARCH_TOOL.tag, result_tag=SEARCH_TOOL.result_tag)


class SearchQA(
    MakesQuestions,
    Family[SearchQAConfig],
    Teacher,
    TeachesReading,
    Renames,
    KnowsEntities,
    WritesAgentTexts,
    ProposesTasks,
    RelabelsFailures,
    LooksAnswersUp,
    SearchesAddedLines,
    MakesCanaries,
    HasBenchmarks,
    ReadsKnowledge,
):
    """The family of questions over documents."""

    name = "search_qa"
    config = SearchQAConfig
    instructions = INSTRUCTIONS
    detours = DETOUR_KINDS
    self_play = frozenset({"webrl", "r_zero"})
    closed_book = CLOSED_BOOK
    headline = "em"

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        # few documents contain few numbers, whose tokens the policy would memorise
        self.splits_digits = profile.asks_own_knowledge

    def tools(self) -> Sequence[Tool]:
        """Return the search tool's schema; `environments` binds it to a view of the knowledge."""
        return (search_tool(_NoDocuments()),)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return 1 for an exact match (`espalier.rewards.answers`), else 0."""
        return float(exact_match(answer, task.verifier.gold))

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open environments that search a view of the knowledge."""
        search = partial(SearchTool.open, knowledge, config=self.profile.search)
        yield lambda view: search_environments(search(view), self)

    def unfindable_answer(self, rng: random.Random) -> str:
        """Return random letters, which no document contains."""
        return "".join(rng.choices(string.ascii_lowercase, k=14))

    def asks_for_added_lines(self, task: Task) -> bool:
        """Return whether the question is made from triples, for which lines are added."""
        return self.profile.knowledge.triple_lines and "query" in task.extra

    @contextmanager
    def environments_as_written(self, knowledge: Path) -> Generator[Environments]:
        """Open environments that search all documents, without the lines of triples."""
        from espalier_search.knowledge.views import without_triple_lines

        documents = load_documents(documents_path(knowledge, "full"))
        documents = without_triple_lines(documents, KnowledgeGraph.load(knowledge))
        index = TextIndex.build(documents)
        yield search_environments(SearchTool(documents, index, self.profile.search), self)

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Write triples, documents and an index for each view."""
        from espalier_search.knowledge.ingesting import write_knowledge

        write_knowledge(self.profile, draft, tracker)

    def questions(
        self, knowledge: Path, funnel: Funnel, tracker: Tracker
    ) -> dict[Split, Sequence[FamilyQuestion]]:
        """Return formal questions, and the user's own."""
        from espalier_search.synthesis.questions import make_questions

        graph = KnowledgeGraph.load(knowledge)
        found = make_questions(self.profile, knowledge, graph, funnel)
        return cast("dict[Split, Sequence[FamilyQuestion]]", found)

    @contextmanager
    def teacher(self, knowledge: Path, funnel: Funnel) -> Generator[Demonstrate]:
        """Open a teacher that follows known routes, or keeps a model's right trajectories."""
        from espalier_search.synthesis.inverted.teaching import ClueRoute, ClueTeacher
        from espalier_search.synthesis.own_questions import WordTeacher
        from espalier_search.synthesis.rollouts import rollout_teacher
        from espalier_search.synthesis.teacher import RouteTeacher
        from espalier_search.synthesis.webshaper.candidate import StatedTriples

        profile = self.profile
        search = SearchTool.open(knowledge, "train", profile.search)
        documents = load_documents(documents_path(knowledge, "train"))
        graph = KnowledgeGraph.load(knowledge)
        statements = StatedTriples.of(graph, documents, profile.knowledge)
        if profile.synthesis.solver == "teacher":
            told = (profile, graph, documents, search, funnel, statements)
            with rollout_teacher(*told) as by_rollouts:
                yield lambda question, _: by_rollouts(question.task)
            return
        max_words = profile.search.max_observation_words
        by_route = RouteTeacher(search, max_words, profile.seed, statements)
        by_words = WordTeacher(search, documents)
        by_clues = ClueTeacher(search, max_words, profile.episode.max_turns - 1)

        def demonstrate(question: FamilyQuestion, detour: str) -> Trajectory | Rejected:
            route = cast("RoutedTask", question).route
            if route is None:
                return by_words.demonstrate(question.task)
            if isinstance(route, ClueRoute):
                return by_clues.demonstrate(question.task, route)
            return by_route.demonstrate(question.task, route, detour)

        yield demonstrate

    def agent_texts(
        self,
        knowledge: Path,
        questions: Mapping[Split, Sequence[FamilyQuestion]],
        demonstrations: Sequence[Trajectory],
        funnel: Funnel,
        tracker: Tracker,
    ) -> AgentTexts:
        """Return agent texts by FAS and HAS, and negatives."""
        from espalier_search.synthesis.agent_texts.writing import text_sources, write_texts

        asked = self.profile.agent_texts
        if not (asked.pretraining_texts or asked.negatives):
            return AgentTexts([], [], {})
        tasks = [question.task for question in questions["train"]]
        sources = text_sources(self.profile, knowledge, tasks, demonstrations)
        written = write_texts(self.profile, sources, funnel, tracker)
        return AgentTexts(written.texts, written.negatives, written.teacher)

    def entity_splits(self, knowledge: Path) -> EntitySplits:
        """Return the splits of the knowledge graph's entities."""
        return EntitySplits.load(knowledge)

    def hub_kinds(self, knowledge: Path) -> list[str]:
        """Return the kinds of hubs in the knowledge graph."""
        graph = KnowledgeGraph.load(knowledge)
        return sorted({entity.kind for entity in graph.entities.values() if entity.hub})

    def renaming(self, knowledge: Path, share: float) -> Renaming:
        """Return the exchange of names for invented ones, as in the reading material."""
        from espalier_search.search_qa.renaming import NameExchange

        documents = load_documents(documents_path(knowledge, "train"))
        return NameExchange([document.title for document in documents], share)

    def task_renaming(self, knowledge: Path, share: float) -> TaskRenaming | None:
        """Return the maker of worlds with other names; None if there are many documents."""
        documents = load_documents(documents_path(knowledge, "train"))
        if len(documents) >= FEW_NAMES:  # too slow: each draw would rename all titles
            return None
        return WorldMaker([document.title for document in documents], share)

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return walks along relations, or sentences with a gap if no document states one."""
        from espalier_search.search_qa.reading_logs import BrowsingWriter, ClozeWriter
        from espalier_search.synthesis.webshaper.candidate import StatedTriples

        del train
        graph = KnowledgeGraph.load(knowledge)
        documents = load_documents(documents_path(knowledge, "train"))
        search = SearchTool.open(knowledge, "train", self.profile.search)
        prestage = self.profile.policy.prestage
        share = prestage.substitution_share
        statements = StatedTriples.of(graph, documents, self.profile.knowledge)
        browsing = BrowsingWriter(
            documents,
            {e.document_id: e.kind for e in graph.entities.values() if e.document_id},
            {relation.label: relation.object_kind for relation in graph.relations.values()},
            search.show,
            substitution_share=share,
            join_share=prestage.join_share,
            stated=statements.facts,
        )
        if not graph.relations or browsing.is_empty:
            return ClozeWriter(documents, search.show, substitution_share=share)
        return browsing

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return questions of HotpotQA, 2WikiMultihopQA, MuSiQue, Bamboogle or WebShaper."""
        return read_questions(path)

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open environments that search the file's paragraphs, or else the knowledge."""
        if paragraphs := read_paragraphs(path):
            index = TextIndex.build(paragraphs)
            yield search_environments(SearchTool(paragraphs, index, self.profile.search), self)
            return
        with super().benchmark_environments(path, knowledge) as environments:
            yield environments

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return HotpotQA's exact match and F1, which do not fold accents."""
        return answer_scores(trajectory.answer, task.verifier.gold)

    def fact(self, task: Task) -> str:
        """Return the query, or for a user's own question its document and answer."""
        return fact_of(task)

    def report_groups(self, task: Task) -> Mapping[str, str]:
        """Return hops and kind of question; for a benchmark, the groups in its file."""
        if isinstance(said := task.extra.get("benchmark"), dict):
            return {name: str(group) for name, group in said.items()}
        return {"kind": str(task.extra.get("kind", "")), "hops": str(task.extra.get("hops", 1))}

    def answer_settings(self) -> Mapping[str, object]:
        """Return the settings of the search tool."""
        return {"search": self.profile.search.model_dump(mode="json")}

    def proposer(self, knowledge: Path, accepted: Path) -> TaskProposer:
        """Return WebRL's evolution of failed questions, or R-Zero's challenger."""
        from espalier_search.synthesis.evolution import (
            GraphProposer,
            Prover,
            failed_patterns,
            rewarding_patterns,
        )
        from espalier_search.synthesis.evolution_teacher import TeacherProposer

        match self.profile.self_play:
            case WebRLConfig(proposer="teacher"):
                prover = Prover(self.profile, knowledge, accepted)
                return TeacherProposer(prover, self.profile.teacher.endpoint)
            case WebRLConfig():
                return GraphProposer(Prover(self.profile, knowledge, accepted), failed_patterns)
            case RZeroConfig():
                return GraphProposer(Prover(self.profile, knowledge, accepted), rewarding_patterns)
            case _:
                return super().proposer(knowledge, accepted)

    def hindsight(self, knowledge: Path, accepted: Path) -> Hindsight:
        """Return what finds the question whose path a trajectory read, by the triples."""
        from espalier_search.search_qa.hindsight import SOURCE, SearchHindsight
        from espalier_search.synthesis.evolution import Prover

        return SearchHindsight(Prover(self.profile, knowledge, accepted, source=SOURCE))


def search_environments(search: Searcher, family: SearchQA) -> Environments:
    """Return environments that answer questions with `search`, by the family's profile."""
    return family.environments_of(family.rules((search_tool(search),)))


class _NoDocuments:
    """An index without documents, for the tool's schema."""

    def observation(self, query: str) -> str:
        return NO_RESULTS
