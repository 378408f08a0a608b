from collections import Counter

import pytest

from espalier.environments.demonstrations import Rejected
from espalier.records import action_of, read_tasks
from espalier.records.trajectory import FinishReason, read_trajectories
from espalier.rewards.answers import exact_match
from espalier_search.knowledge.search import NO_RESULTS, SearchTool
from espalier_search.search_qa import SearchQA, search_environments
from espalier_search.synthesis.task_making import formal_question
from espalier_search.synthesis.teacher import DETOUR_KINDS, RouteTeacher

from .conftest import PROFILE


@pytest.fixture(scope="module")
def search(knowledge_dir):
    return SearchTool.open(knowledge_dir, "train", PROFILE.search)


@pytest.fixture(scope="module")
def demonstrations(synthetic_dir):
    tasks = {task.task_id: task for task in read_tasks(synthetic_dir / "tasks" / "train.jsonl")}
    trajectories = read_trajectories(synthetic_dir / "trajectories.parquet")
    return [(tasks[trajectory.task_id], trajectory) for trajectory in trajectories]


def test_every_demonstration_ends_in_the_gold_answer(demonstrations):
    assert len(demonstrations) == PROFILE.synthesis.trajectories
    for task, trajectory in demonstrations:
        final = trajectory.messages[-1]
        assert final.tool_calls == ()
        assert exact_match(final.content, task.verifier.gold)
        assert trajectory.finish_reason is FinishReason.ANSWERED


def test_the_environment_replays_a_demonstration_word_by_word(demonstrations, search):
    environments = search_environments(search, SearchQA(PROFILE))
    for task, trajectory in demonstrations:
        episode = environments(task)
        episode.reset(task)
        messages = list(trajectory.messages[1:])
        while messages:
            step = episode.step(action_of(messages.pop(0)))
            if messages:
                assert step.messages == (messages.pop(0),)
        assert episode.finish_reason is FinishReason.ANSWERED
        assert episode.score()["outcome"] == 1.0
        assert tuple(episode.tool_results) == trajectory.tool_results


def test_a_teacher_types_only_given_or_observed_names(demonstrations):
    for task, trajectory in demonstrations:
        if trajectory.detour:
            continue
        seen = task.question
        for message in trajectory.messages[1:]:
            for call in message.tool_calls:
                query = call.arguments["query"]
                names = [name for name in task.extra["entities"] if name in query]
                assert query.startswith(tuple(names))
                assert all(name in seen for name in names)
            seen += " " + message.content


def test_the_asked_share_of_detours_costs_one_search_each(demonstrations):
    kinds = Counter(trajectory.detour for _, trajectory in demonstrations if trajectory.detour)
    assert set(kinds) == set(DETOUR_KINDS)
    asked = PROFILE.synthesis.detour_share * len(demonstrations)
    assert abs(kinds.total() - asked) <= 2
    for task, shown in demonstrations:
        if task.extra["kind"] == "chain":
            assert len(shown.tool_results) - task.extra["hops"] == bool(shown.detour)
        if shown.detour == "empty_result":
            assert any(one.content == NO_RESULTS for one in shown.tool_results)
            assert not all(one.succeeded for one in shown.tool_results)


def test_demonstrations_have_the_mix_of_the_held_out_questions(demonstrations, synthetic_dir):
    heldout = read_tasks(synthetic_dir / "tasks" / "heldout.jsonl")
    mix = Counter((task.extra["kind"], task.extra["hops"]) for task, _ in demonstrations)
    wanted = Counter((task.extra["kind"], task.extra["hops"]) for task in heldout)
    for stratum, count in wanted.items():
        share = count / len(heldout) * len(demonstrations)
        assert abs(mix[stratum] - share) <= 1, stratum


def test_a_line_not_shown_by_search_rejects_the_route(candidates, search):
    question = formal_question(candidates["heldout"][0], "heldout", PROFILE.seed)
    teacher = RouteTeacher(search, PROFILE.search.max_observation_words, PROFILE.seed)
    rejected = teacher.demonstrate(question.task, question.route)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "line_not_shown"


def test_a_cut_observation_rejects_the_route(candidates, knowledge_dir):
    narrow = PROFILE.search.model_copy(update={"max_observation_words": 4})
    teacher = RouteTeacher(SearchTool.open(knowledge_dir, "train", narrow), 4, PROFILE.seed)
    questions = [formal_question(c, "train", PROFILE.seed) for c in candidates["train"]]
    outcomes = [teacher.demonstrate(q.task, q.route) for q in questions if q.route]
    reasons = Counter(o.reason for o in outcomes if isinstance(o, Rejected))
    assert reasons["observation_cut"] > 0
