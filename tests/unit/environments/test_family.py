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
    SimpleFamily,
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
        Sold(Profile.model_validate({"environment": {"name": NAME}})).questions(
            NOWHERE, Funnel(), NullTracker()
        )


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
    profile = {"environment": {"name": NAME}, "episode": {"max_turns": 2}}
    short = Prices(Profile.model_validate(profile))
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
        ScriptTeacher(over("train")).demonstrate(item(family, 1), script, detour="mistake")
    refused = "error: thing99 is not sold here"
    assert seen == [(refused, False), ("1", True), (f"1\n{refused}", False)]


def test_a_detour_is_written_down():
    family = Prices(Profile.model_validate({"environment": {"name": NAME}}))
    with family.environments(NOWHERE) as over:
        task = item(family, 1)
        shown = ScriptTeacher(over("train")).demonstrate(
            task, lambda: family.demonstrate(task), detour="mistake"
        )
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
    texts = list(family.reading_material(NOWHERE, family.tasks("train", 2)).texts(random.Random(0)))
    assert "What does thing1 cost in crowns?" in texts
    assert "price thing1" in texts
    assert "convert 2" in texts
    assert "4 crowns" in texts


def test_reports_group_by_kind_and_difficulty_by_default(family):
    groups = family.report_groups(item(family, 1))
    assert groups == {"kind": "small", "difficulty": "2"}
    assert family.stratum(item(family, 1)) == "small-2"
    bare = make_task("prices", "?", gold=("1",), split="train", source="test", key="k")
    assert family.report_groups(bare) == {}
    assert family.stratum(bare) == ""


def test_entities_and_documents_are_read_from_metadata(family):
    task = item(family, 1)
    assert family.names_of(task) == ("thing1",)
    assert family.documents_of(task) == ()
    assert family.question_key(task) == ""


def test_answer_settings_leave_out_the_familys_name(family):
    assert family.answer_settings() == {"rate": 2, "shops": 1}


def test_a_plain_family_has_no_proposer(family):
    assert not isinstance(family, ProposesTasks)
    with pytest.raises(ValidationError, match=rf'environment\.name = "{NAME}"'):
        Profile.model_validate(PROFILE | {"self_play": {"name": "webrl"}})


def test_a_typed_question_is_a_task_of_the_family(family):
    task = family.chat_task("What does thing1 cost in crowns?")
    assert task.environment == "prices"
    assert task.question == "What does thing1 cost in crowns?"


def test_a_task_of_another_family_is_refused(family):
    with family.environments(NOWHERE) as over, pytest.raises(PolicyError, match="prices"):
        over("train")(make_task("chess", "?", gold=("1",), split="dev", source="t", key="k"))


def test_equal_keys_of_a_split_are_one_task():
    def made(split, key):
        return make_task("f", "?", gold=("1",), split=split, source="t", key=key).task_id

    assert made("train", "a") == made("train", "a")
    assert len({made("train", "a"), made("dev", "a"), made("train", "b")}) == 3


def test_a_simple_family_says_what_it_lacks():
    class Empty(SimpleFamily):
        name = "empty"

    with pytest.raises(TypeError, match="demonstrate"):
        Empty(Profile())


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
