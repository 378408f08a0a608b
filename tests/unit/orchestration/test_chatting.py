import json

import pytest

from espalier.config import Profile
from espalier.environments import make_task
from espalier.orchestration.finished_run import Conversation, open_finished_run, transcript
from espalier.records import ArtifactError, DataError, Message, ProfileError, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory
from espalier.rollout.asking import RunTasks


class OneSearch:
    """Searches once and answers."""

    def roll_out(self, tasks, *, samples, temperature, seed):
        (task,), call = tasks, ToolCall(name="search", arguments={"query": "lyon country"})
        asked = Message(role="assistant", tool_calls=(call,))
        found, answer = (Message(role=role, content=text) for role, text in SAID)
        return [
            Trajectory(
                task_id=task.task_id, group_id="chat", policy_version=0, reward={},
                messages=(*task.prompt, asked, found, answer), answer=answer.content,
                tool_results=(ToolResult(call=call, content=found.content, succeeded=True),),
                finish_reason=FinishReason.ANSWERED,
            )
        ]  # fmt: skip


def conversation(tasks):
    return Conversation(OneSearch(), RunTasks(Profile(), tasks), 0)


SAID = (("tool", "Lyon | country: France"), ("assistant", "France"))


def test_a_question_shows_its_searches_and_its_answer():
    trajectory = conversation({}).ask("which country is Lyon in?")
    assert trajectory.messages[0].content == "which country is Lyon in?"
    lines = transcript(trajectory).splitlines()
    shown = ("search(query=lyon country)", "country: France", "France", "France")
    assert all(text in line for text, line in zip(shown, lines, strict=True))


def stateful_task(world=3):
    return make_task(
        "search_qa", "which country is Lyon in?", gold=("France",), split="heldout", source="s",
        key=str(world), arguments={"world": world},
    )  # fmt: skip


def test_a_task_is_shown_with_its_question_gold_and_reward():
    task = stateful_task()
    chat = conversation({task.task_id: task})
    played = chat.play(chat.task(task.task_id))
    played.reward["outcome"] = 1.0
    lines = transcript(played, task).splitlines()
    assert lines[0] == "question  which country is Lyon in?"
    assert lines[-2:] == ["gold      France", "reward    outcome 1"]


def test_a_question_without_a_state_is_refused_by_name():
    tasks = {task.task_id: task for task in (stateful_task(3), stateful_task(4))}
    first = next(iter(tasks))
    chat = conversation(tasks)
    with pytest.raises(DataError, match=f"--task {first}"):
        chat.ask("which country is Lyon in?")
    with pytest.raises(DataError, match=f"no task dev-7.*{first}"):
        chat.task("dev-7")
    alike = conversation({first: tasks[first]})
    assert alike.ask("which country is Lyon in?").answer == "France"


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(DataError, match="UTF-8"):
        RunTasks(Profile(), {}).of_question("what is \udcff?")


def test_a_folder_without_a_sound_run_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=tmp_path.name):
        open_finished_run(tmp_path)
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(ProfileError, match="profile JSON"):
        open_finished_run(tmp_path)


def test_keys_that_are_gone_do_not_spoil_a_saved_profile(tmp_path):
    tables = Profile(seed=3).model_dump(mode="json")
    tables |= {"gone": {"key": 1}, "agent": tables["agent"] | {"wire_formats": ["chat"]}}
    tables["training"]["algorithm"]["advantage"]["gone"] = 1
    tables["environment"]["gone"] = 1
    (tmp_path / "profile.json").write_text(json.dumps(tables))
    assert open_finished_run(tmp_path).profile == Profile(seed=3)
