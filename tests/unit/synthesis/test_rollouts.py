import asyncio
from dataclasses import replace

import pytest

from espalier.completions import ModelRefusal
from espalier.config import Profile
from espalier.environments.demonstrations import Rejected, reason_against
from espalier.environments.funnel import Funnel
from espalier.records import Message, NullTracker
from espalier.records.knowledge import load_documents
from espalier.records.trajectory import read_trajectories
from espalier.rewards.answers import exact_match
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import SearchTool, documents_path
from espalier_search.synthesis.rollouts import Move, Rollouts, rollout_teacher
from espalier_search.synthesis.task_making import formal_question
from espalier_search.synthesis.teacher import RouteTeacher

from .conftest import PROFILE


class Scripts:
    """A solver whose attempts are what the test tells it: a list of (tool, argument) each."""

    def __init__(self, *attempts):
        self.attempts = attempts

    async def answer(self, request):
        attempt = self.attempts[request.sample % len(self.attempts)]
        made = attempt[min(len(request.material.seen), len(attempt) - 1)]
        if isinstance(made, ModelRefusal):
            return made
        return Move(thought="so", tool=made[0], argument=made[1])


@pytest.fixture(scope="module")
def search(knowledge_dir):
    return SearchTool.open(knowledge_dir, "train", PROFILE.search)


@pytest.fixture(scope="module")
def asked(candidates, search):
    """A task, and searches that lead to its answer."""
    teacher = RouteTeacher(search, PROFILE.search.max_observation_words, 0)
    for candidate in candidates["train"]:
        question = formal_question(candidate, "train", 0)
        shown = teacher.demonstrate(question.task, question.route)
        if not isinstance(shown, Rejected) and len(shown.tool_results) == 2:
            return question.task, shown
    raise AssertionError("some question takes two searches")


def _rolled_out(model, search, task, rollouts=1):
    funnel = Funnel()
    attempts = Rollouts(model, search, funnel, rollouts=rollouts, max_turns=6)
    return asyncio.run(attempts.demonstrate(task)), funnel.counts("rollouts")


def test_each_reason_for_rejecting_an_attempt_is_counted_apart(asked, search):
    task, shown = asked
    queries = [("search", one.call.arguments["query"]) for one in shown.tool_results]
    right = ("answer", task.verifier.gold[0])
    attempts = {
        "kept": [*queries, right],
        "wrong_answer": [*queries, ("answer", "Atlantis")],
        "hallucinated_tool": [("browse", "everything")],
        "hallucinated_observation": [("search", "zzzz"), right],
        "repetition": [queries[0], queries[0], queries[1], right],
        "unanswered": [queries[0]],
        "model_truncated": [ModelRefusal("truncated")],
    }
    for reason, attempt in attempts.items():
        outcome, counts = _rolled_out(Scripts(attempt), search, task)
        assert counts == {reason: 1}
        assert isinstance(outcome, Rejected) == (reason != "kept")
    model = Scripts(*attempts.values())
    kept, counts = _rolled_out(model, search, task, rollouts=len(attempts))
    assert counts == dict.fromkeys(attempts, 1)
    assert kept.tool_results == shown.tool_results


def test_a_made_up_observation_or_a_respelled_search_is_rejected(asked):
    task, shown = asked
    assert reason_against(shown, task) is None
    made_up = Message(role="tool", content=f"Somewhere | answer: {task.verifier.gold[0]}")
    longer = replace(shown, messages=(*shown.messages, made_up))
    assert reason_against(longer, task) == "hallucinated_observation"
    again = shown.tool_results[0]
    query = again.call.arguments["query"].upper()
    louder = replace(again, call=again.call.model_copy(update={"arguments": {"query": query}}))
    longer = replace(shown, tool_results=(*shown.tool_results, louder))
    assert reason_against(longer, task) == "repetition"


def test_wrong_attempts_of_the_embedded_teacher_are_never_kept(
    knowledge_dir, graph, candidates, search
):
    documents = load_documents(documents_path(knowledge_dir, "train"))
    funnel = Funnel()
    kept = 0
    with rollout_teacher(PROFILE, graph, documents, search, funnel) as demonstrate:
        for candidate in candidates["train"][:60]:
            task = formal_question(candidate, "train", 0).task
            outcome = demonstrate(task)
            if not isinstance(outcome, Rejected):
                kept += 1
                assert exact_match(outcome.answer, task.verifier.gold)
    counts = funnel.counts("rollouts")
    assert sum(counts.values()) == 60 * PROFILE.synthesis.rollouts
    assert counts["wrong_answer"] > 0
    assert kept > 20


@pytest.mark.slow
def test_a_run_may_be_demonstrated_by_rollouts(tmp_path, knowledge_dir):
    tables = PROFILE.model_dump()
    tables["synthesis"] |= {"solver": "teacher", "trajectories": 12, "rollouts": 3}
    profile = Profile.model_validate(tables)
    out = tmp_path / "synthetic"
    stage.run(profile, {"knowledge": knowledge_dir}, out, NullTracker())
    trajectories = read_trajectories(out / "trajectories.parquet")
    assert len(trajectories) == 12
    assert '"rollouts": {' in (out / "funnel.json").read_text()
