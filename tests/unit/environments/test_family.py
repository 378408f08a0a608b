"""A family that is a few functions: what the stages ask of it."""

import random
from pathlib import Path

import pytest
from pydantic import ValidationError

from espalier.config import Profile
from espalier.environments import (
    Log,
    PlainQuestion,
    ProposesTasks,
    family_of,
    make_task,
)
from espalier.environments.demonstrations import Rejected
from espalier.environments.funnel import Funnel
from espalier.environments.teaching import ScriptTeacher
from espalier.records import (
    DataError,
    FinalAnswer,
    NullTracker,
    PolicyError,
    ToolCall,
    ToolCalls,
)
from espalier.records.trajectory import FinishReason, Trajectory
from tests.unit.environments.prices import Prices

NOWHERE = Path("no-knowledge-is-read")
NAME = "tests.unit.environments.prices:Prices"
PROFILE = {
    "environment": {"name": NAME},
    "synthesis": {"train_tasks": 8, "dev_tasks": 3, "heldout_tasks": 4, "trajectories": 4},
    "curriculum": {"candidates": 8},
    "training": {"dev_questions": 3},
    "warm_start": {"dev_questions": 3},
}


@pytest.fixture
def family():
    return family_of(Profile.model_validate(PROFILE))


def item(family, number):
    return next(t for t in family.tasks("train", 9) if f"thing{number} " in t.question)


def demonstrate(family, number):
    with family.teacher(NOWHERE, Funnel()) as teacher:
        return teacher(PlainQuestion(item(family, number)), "")


def test_the_profile_names_the_family_and_gives_it_its_settings(family):
    assert isinstance(family, Prices)
    assert family.settings.rate == 2
    assert family.answer_settings() == {"rate": 2, "shops": 1}
    assert [spec.name for spec in family.specs] == ["price", "convert"]
    assert "task" not in family.specs[1].parameters["properties"]


def test_questions_are_those_that_are_asked_for_in_every_split(family):
    questions = family.questions(NOWHERE, Funnel(), NullTracker())
    assert {split: len(found) for split, found in questions.items()} == {
        "train": 8, "dev": 3, "heldout": 4,
    }  # fmt: skip
    assert all(q.task.metadata.split == split for split, qs in questions.items() for q in qs)
    ids = [question.task.task_id for found in questions.values() for question in found]
    assert len(set(ids)) == len(ids)


def test_a_split_without_a_task_is_named():
    class Sold(Prices):
        def tasks(self, split, count):
            return [] if split == "dev" else super().tasks(split, count)

    with pytest.raises(DataError, match=r"prices: .*dev"):
        Sold(Profile.model_validate(PROFILE)).questions(NOWHERE, Funnel(), NullTracker())


def test_the_teacher_plays_its_script_in_the_policys_environment(family):
    shown = demonstrate(family, 7)
    assert isinstance(shown, Trajectory)
    assert shown.finish_reason is FinishReason.ANSWERED
    assert shown.is_right
    assert shown.reward == {"outcome": 1.0, "format": 0.1}
    assert shown.group_id == f"teacher/{shown.task_id}"
    assert [message.role for message in shown.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [result.content for result in shown.tool_results] == ["7", "14 crowns"]
    assert shown.messages[1].tool_calls == (ToolCall(name="price", arguments={"item": "thing7"}),)
    assert shown.messages[-1].content == "14"
    assert shown.token_ids == ()


@pytest.mark.parametrize(
    ("number", "reason"), [(3, "no_three"), (4, "unanswered"), (5, "wrong_answer")]
)
def test_what_is_no_demonstration_is_rejected_with_its_reason(family, number, reason):
    assert demonstrate(family, number) == Rejected(reason)


def test_a_demonstration_longer_than_an_episode_is_none():
    short = family_of(Profile.model_validate(PROFILE | {"episode": {"max_turns": 2}}))
    assert demonstrate(short, 7) == Rejected("too_few_turns")


def test_a_script_reads_observations_and_whether_calls_succeeded(family):
    seen = []

    def script():
        bad = ToolCall(name="price", arguments={"item": "thing99"})
        good = ToolCall(name="price", arguments={"item": "thing1"})
        for calls in ((bad,), (good,), (good, bad)):
            observed = yield ToolCalls(calls)
            seen.append((str(observed), observed.succeeded))
        yield FinalAnswer("2")

    with family.environments(NOWHERE) as over:
        shown = ScriptTeacher(over("train")).demonstrate(item(family, 1), script, detour="mistake")
    refused = "error: thing99 is not sold here"
    assert seen == [(refused, False), ("1", True), (f"1\n{refused}", False)]
    assert shown.detour == "mistake"


def test_reading_material_is_demonstrations_whose_question_cannot_be_answered(family):
    train = family.tasks("train", 9)
    material = family.reading_material(NOWHERE, train)
    log = material.write(random.Random(3))
    assert isinstance(log, Log)
    assert log == material.write(random.Random(3))
    questions = {task.question: sorted(task.question.split()) for task in train}
    assert sorted(log.prompt.split()) in questions.values()
    assert log.prompt not in questions
    called, read, converted, told, answered = log.pieces
    assert isinstance(called, ToolCalls)
    assert isinstance(converted, ToolCalls)
    assert isinstance(answered, FinalAnswer)
    assert told == f"{int(read) * 2} crowns"


def test_tokenizer_texts_hold_all_messages_and_calls(family):
    texts = set(family.reading_material(NOWHERE, family.tasks("train", 2)).texts(random.Random(0)))
    asked = "What does thing1 cost in crowns?"
    assert texts >= {asked, "price thing1", "convert 2", "4 crowns"}


def test_reports_and_names_are_read_from_metadata(family):
    task = item(family, 1)
    assert family.report_groups(task) == {"kind": "small", "difficulty": "2"}
    assert family.stratum(task) == "small-2"
    assert family.names_of(task) == ("thing1",)
    assert (family.documents_of(task), family.question_key(task)) == ((), "")
    bare = family.chat_task("What does thing1 cost?")
    assert (bare.environment, bare.question) == ("prices", "What does thing1 cost?")
    assert (family.report_groups(bare), family.stratum(bare)) == ({}, "")


def test_a_plain_family_has_no_proposer(family):
    assert not isinstance(family, ProposesTasks)
    with pytest.raises(ValidationError, match=rf'environment\.name = "{NAME}"'):
        Profile.model_validate(PROFILE | {"self_play": {"name": "webrl"}})


def test_equal_keys_of_a_split_are_one_task():
    def made(split, key):
        return make_task("f", "?", gold=("1",), split=split, source="t", key=key).task_id

    assert made("train", "a") == made("train", "a")
    assert len({made("train", "a"), made("dev", "a"), made("train", "b")}) == 3


def test_a_derived_family_plays_the_tasks_of_its_base():
    class Renamed(Prices):
        name = "renamed"

    family = Renamed(Profile.model_validate(PROFILE))
    (task,) = family.tasks("train", 1)
    with family.environments(NOWHERE) as over:
        for named in ("renamed", "prices"):
            played = over("train")(task.model_copy(update={"environment": named}))
            assert played.reset(task).tools
        with pytest.raises(PolicyError, match="'other'"):
            over("train")(task.model_copy(update={"environment": "other"}))
