"""An answer becomes that of the path which was read, where the triples prove it."""

import asyncio
from functools import cache

import pytest

from espalier.environments.hindsight import relabelled
from espalier.environments.teaching import ScriptTeacher, play_script
from espalier.records import FinalAnswer, read_tasks
from espalier.records.trajectory import read_trajectories
from espalier_search.search_qa import SearchQA
from espalier_search.synthesis.search_wording import search_call, shown_hits
from tests.benchmarks.brute_force import Store, answers, faults, parsed

from .conftest import PROFILE


@pytest.fixture(scope="module")
def family():
    return SearchQA(PROFILE)


@pytest.fixture(scope="module")
def over(family, knowledge_dir):
    with family.environments(knowledge_dir) as environments_over:
        yield cache(environments_over)  # an index takes a second to open


@pytest.fixture(scope="module")
def hindsight(family, knowledge_dir, synthetic_dir):
    return family.hindsight(knowledge_dir, synthetic_dir)


@pytest.fixture(scope="module")
def chains(synthetic_dir):
    """Demonstrated questions of two hops or more, each with its searches and its answer."""
    tasks = {task.task_id: task for task in read_tasks(synthetic_dir / "tasks" / "train.jsonl")}
    return [
        (tasks[one.task_id], one)
        for one in read_trajectories(synthetic_dir / "trajectories.parquet")
        if tasks[one.task_id].extra["kind"] == "chain"
        and int(tasks[one.task_id].extra["hops"]) > 1
        and not one.detour
    ]


def attempt(over, task, queries, answer, view="train"):
    script = (
        *(search_call("whatever", query) for query in queries), FinalAnswer(answer, "so"),
    )  # fmt: skip
    return asyncio.run(play_script(over(view), task, (one for one in script)))


def too_early(over, task, shown):
    """An attempt that answers with the value before the last one."""
    queries = [one.call.arguments["query"] for one in shown.tool_results]
    named = shown_hits(shown.tool_results[-1].content)[0].title
    return attempt(over, task, queries[:-1], named)


def test_answer_of_a_shorter_path_becomes_its_question(over, hindsight, chains, graph):
    store = Store((t.subject, t.relation, t.object) for t in graph.triples())
    pairs = [(task, too_early(over, task, shown)) for task, shown in chains]
    found = relabelled(pairs, hindsight, ScriptTeacher(over("train")), set())
    assert found == relabelled(pairs, hindsight, ScriptTeacher(over("train")), set())
    assert len(found.demonstrations) > 10
    assert len(found.demonstrations) + found.unused.total() == len(pairs)
    for shown in found.demonstrations:
        solved = found.tasks[shown.task_id]
        node = parsed(solved.extra["query"])
        [answer] = answers(node, store)
        assert solved.verifier.gold == (graph.entities[answer].name,)
        assert faults(node, store) == []
        assert solved.metadata.source == "hindsight"
        assert shown.reward["outcome"] == 1
        thoughts = [m.thought for m in shown.messages if m.role == "assistant"]
        assert "whatever" not in thoughts
        assert len(thoughts) == solved.extra["hops"] + 1


def test_searches_beside_the_path_are_left_out(over, hindsight, chains):
    task, shown = chains[0]
    first = shown.tool_results[0].call.arguments["query"]
    named = shown_hits(shown.tool_results[1].content)[0].title
    strayed = attempt(over, task, ["nothing of that", first, f"{named} population"], named)
    direct = hindsight.achieved(task, attempt(over, task, [first], named))
    assert hindsight.achieved(task, strayed).actions == direct.actions
    assert [one.calls[0].arguments["query"] for one in direct.actions[:-1]] == [first]


def test_guess_without_evidence_is_not_used(over, hindsight, chains):
    task, shown = chains[0]
    title = shown_hits(shown.tool_results[0].content)[0].title
    named = shown_hits(shown.tool_results[1].content)[0].title
    # a search for another line may show this one as well
    for queries, answer, reason in (
        ([], named, "answer_at_the_end_of_no_path"),
        ([f"{title} xyz"], named, "answer_at_the_end_of_no_path"),
        ([], "no such place", "answer_is_no_entity"),
    ):
        assert hindsight.achieved(task, attempt(over, task, queries, answer)).reason == reason


def test_nothing_of_dev_or_heldout_is_asked_whatever_was_read(
    over, hindsight, graph, synthetic_dir
):
    """Even where an attempt could search all documents, which no training does."""
    secret = {e.name for e in graph.entities.values() if e.split in ("dev", "heldout")}
    shown = {e.name for e in graph.entities.values() if e.split in ("train", "hub")}
    apart = [
        task
        for split in ("dev", "heldout")
        for task in read_tasks(synthetic_dir / "tasks" / f"{split}.jsonl")[:20]
    ]
    queries = {task.extra["query"] for task in apart}
    for task in apart:
        path, names = _lines(task, graph), task.extra["entities"]
        ends = [(end, names[end % len(path)]) for end in range(1, len(path) + 1)]
        for end, answer in (*ends, (len(path), task.verifier.gold[0])):
            tried = attempt(over, task, path[:end], answer, "full")
            found = hindsight.achieved(task, tried)
            if hasattr(found, "task"):
                assert found.task.extra["query"] not in queries
                assert not (secret - shown) & set(found.task.extra["entities"])


def _lines(task, graph):
    """Searches for the lines that a chain reads."""
    labels = [
        graph.relations[name].label
        for name in reversed(task.metadata.pattern.replace(")", "").split("("))
        if name in graph.relations
    ]
    return [f"{name} {label}" for name, label in zip(task.extra["entities"], labels, strict=False)]
