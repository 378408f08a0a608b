"""Worked solutions of similar training tasks before a question: which, and none that is judged."""

import asyncio
from dataclasses import replace

import pytest

from espalier.config import EpisodeConfig, Profile
from espalier.environments.memory import SkillMemory, recalled_prompt, remembering
from espalier.records import DataError, FinalAnswer, write_tasks
from espalier.records.trajectory import write_trajectories
from espalier.rollout.engines.engine import Sampling
from espalier.rollout.episode import EpisodeContext, ToolRunner, run_episode
from espalier.training.demonstrations import encode_demonstration
from espalier_search.search_qa import SearchQA
from espalier_search.synthesis.search_wording import search_call
from tests.factories.tiny import LookupSearch, lookup_environments, tiny_dialect
from tests.factories.validation import a_task, a_trajectory
from tests.fakes.scripted_engine import ScriptedEngine

PROFILE = Profile(episode={"memory": {"recalled": 2, "max_tokens": 64}})
FAMILY = SearchQA(PROFILE)
DIALECT = tiny_dialect()
LIMITS = PROFILE.episode
TASKS = {
    task.task_id: task
    for task in (
        a_task("rhone", question="Which city is on the Rhone?", query="city(rhone)"),
        a_task("seine", question="Which city is on the Seine?", query="city(seine)"),
        a_task("reworded", question="Name the city of the Rhone.", query="city(rhone)"),
        a_task("euro", question="What is the currency of France?", query="currency(france)"),
    )
}
HELD = a_task("held", "heldout", question="Which city is on the Loire?", query="city(loire)")
SOLUTION = "solved : Which city is on the Seine? search rhone ; Lyon"


def memory_of(*ids):
    return SkillMemory.of(TASKS, [a_trajectory(one) for one in ids or TASKS], FAMILY)


def test_most_similar_solutions_come_first_and_tell_the_calls():
    found = memory_of().recalled(HELD, 3)
    assert SOLUTION in found
    assert "currency" not in " ".join(found[:2])
    assert memory_of().recalled(HELD, 1) == found[:1]


def test_own_solution_and_its_rewordings_are_never_recalled():
    for task in (TASKS["rhone"], TASKS["reworded"]):
        found = memory_of().recalled(task, 3)
        assert not [text for text in found if "Rhone" in text]
    same = TASKS["rhone"].model_copy(update={"task_id": "other"})
    other = same.model_copy(update={"metadata": same.metadata.model_copy(update={"extra": {}})})
    assert not [text for text in memory_of("rhone").recalled(other, 3) if "Rhone" in text]


def test_wrong_attempts_strange_words_and_other_families_recall_nothing():
    wrong = a_trajectory("seine", reward=0.0)
    assert SkillMemory.of(TASKS, [wrong], FAMILY).recalled(HELD, 2) == ()
    strange = a_task("strange", question="xyzzy", query="x")
    assert memory_of().recalled(strange, 2) == ()
    other = HELD.model_copy(update={"environment": "shop"})  # of a mixture: it lacks these tools
    assert memory_of().recalled(other, 3) == ()


@pytest.mark.parametrize("split", ["dev", "heldout"])
def test_judged_task_never_enters_the_memory(split):
    judged = a_task("judged", split, question="Which city is on the Loire?")
    with pytest.raises(DataError, match="judged"):
        SkillMemory.of({"judged": judged}, [a_trajectory("judged")], FAMILY)
    with pytest.raises(DataError, match="unknown"):
        SkillMemory.of(TASKS, [a_trajectory("unknown")], FAMILY)


def test_memory_is_read_from_accepted_training_tasks_alone(tmp_path):
    (tmp_path / "tasks").mkdir()
    write_tasks(tmp_path / "tasks" / "train.jsonl", TASKS.values())
    write_tasks(tmp_path / "tasks" / "heldout.jsonl", [HELD])
    path = tmp_path / "trajectories.parquet"
    write_trajectories(path, [a_trajectory(one) for one in TASKS])
    family = remembering(PROFILE, tmp_path)
    assert family.memory.recalled(HELD, 2) == memory_of().recalled(HELD, 2)
    assert family.environments_of(family.rules(family.tools())).memory is family.memory
    write_trajectories(path, [a_trajectory("seine"), a_trajectory("held")])
    with pytest.raises(DataError, match="remembered"):
        remembering(PROFILE, tmp_path)
    assert remembering(Profile(), tmp_path).memory is None


def prompt_with(limits):
    return recalled_prompt(HELD.prompt, HELD, memory_of(), DIALECT, limits)


def test_solutions_stand_before_the_question_as_many_as_fit():
    plain = len(DIALECT.prompt_ids(HELD.prompt))
    lengths = set()
    for most in range(8, 200, 8):
        limits = EpisodeConfig(memory={"recalled": 3, "max_tokens": most})
        shown = prompt_with(limits)
        assert shown[-1].content.endswith(HELD.question)
        assert len(DIALECT.prompt_ids(shown)) <= plain + most
        lengths.add(shown[-1].content.count("solved :"))
    assert lengths == {0, 1, 2, 3}
    tight = EpisodeConfig(
        max_tokens=plain + 20, max_turn_tokens=16, memory={"recalled": 3, "max_tokens": 200}
    )
    assert prompt_with(tight) == HELD.prompt
    assert prompt_with(EpisodeConfig()) == HELD.prompt


def played(memory):
    search = LookupSearch(("Loire | city: Nantes",))
    actions = [search_call("city", "loire"), FinalAnswer("nantes", "answer")]
    engine = ScriptedEngine(DIALECT, [DIALECT.action_ids(action) for action in actions])
    context = EpisodeContext(
        engine=engine,
        dialect=DIALECT,
        environments=replace(lookup_environments(search, Profile()), memory=memory),
        tools=ToolRunner(workers=0, timeout_s=5.0),
        limits=LIMITS,
    )
    return engine, asyncio.run(run_episode(HELD, Sampling(temperature=1.0, seed=7), context))


def test_what_is_recalled_is_read_and_never_trained_on():
    engine, episode = played(memory_of())
    trajectory = episode.trajectory
    prompt_ids = DIALECT.prompt_ids(prompt_with(LIMITS))
    assert trajectory.token_ids[: len(prompt_ids)] == prompt_ids
    assert set(trajectory.action_mask[: len(prompt_ids)]) == {0}
    assert tuple(engine.sessions[0].context) == trajectory.token_ids
    assert trajectory.messages[0].content.startswith("solved : Which city is on the")
    assert episode.prompt == prompt_with(LIMITS)
    assert DIALECT.drifted_turns(episode.prompt, episode.pieces) == 0
    _, plain = played(None)
    assert plain.trajectory.messages[0].content == HELD.question


def test_demonstrations_are_encoded_behind_what_is_recalled():
    task, shown = TASKS["rhone"], a_trajectory("rhone")
    memory = memory_of()

    def recall(task, dialect):
        return recalled_prompt(task.prompt, task, memory, dialect, LIMITS)

    plain = encode_demonstration(shown, TASKS, lambda _: DIALECT)
    recalling = encode_demonstration(shown, TASKS, lambda _: DIALECT, recall)
    prompt = DIALECT.prompt_ids(recall(task, DIALECT))
    behind = len(DIALECT.prompt_ids(task.prompt))
    assert len(prompt) > behind
    assert recalling.token_ids == (*prompt, *plain.token_ids[behind:])
    assert recalling.loss_mask == (*[0] * len(prompt), *plain.loss_mask[behind:])
