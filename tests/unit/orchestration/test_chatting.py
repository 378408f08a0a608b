import json

import pytest

from espalier.config import Profile
from espalier.orchestration.finished_run import Conversation, open_finished_run, transcript
from espalier.records import ArtifactError, Message, ProfileError, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult, Trajectory

SEARCH = ToolCall(name="search", arguments={"query": "lyon country"})
FOUND = "Lyon | country: France"


class OneSearch:
    """Searches once and answers."""

    def roll_out(self, tasks, *, samples, temperature, seed):
        (task,) = tasks
        assert (samples, temperature) == (1, 0.0)
        return [
            Trajectory(
                task_id=task.task_id,
                group_id="chat",
                messages=(
                    *task.prompt,
                    Message(role="assistant", tool_calls=(SEARCH,)),
                    Message(role="tool", content=FOUND),
                    Message(role="assistant", content="France"),
                ),
                tool_results=(
                    ToolResult(call=SEARCH, content="Lyon | country: France", succeeded=True),
                ),
                reward={},
                answer="France",
                finish_reason=FinishReason.ANSWERED,
                policy_version=0,
            )
        ]


def test_a_question_shows_its_searches_and_its_answer():
    trajectory = Conversation(OneSearch(), Profile()).ask("which country is Lyon in?")
    assert trajectory.messages[0].content == "which country is Lyon in?"
    assert transcript(trajectory).splitlines() == [
        "policy    search(query=lyon country)",
        "found     Lyon | country: France",
        "policy    France",
        "answer    France",
    ]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=tmp_path.name):
        open_finished_run(tmp_path)


def test_a_run_whose_profile_is_damaged_is_refused(tmp_path):
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
