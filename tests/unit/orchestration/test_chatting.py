import pytest

from espalier.config import Profile
from espalier.orchestration.chatting import Conversation, transcript
from espalier.orchestration.finished_run import open_finished_run
from espalier.records import ArtifactError, Message
from espalier.records.trajectory import FinishReason, Trajectory


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
                    Message(role="assistant", content="<search> lyon country </search>"),
                    Message(role="tool", content="Lyon | country: France"),
                    Message(role="assistant", content="<answer> France </answer>"),
                ),
                tool_calls=(),
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
        "policy    <search> lyon country </search>",
        "found     Lyon | country: France",
        "policy    <answer> France </answer>",
        "answer    France",
    ]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="not the folder of a run"):
        open_finished_run(tmp_path)
