from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from espalier.records import DataError, FinalAnswer, Message
from espalier.records.trajectory import FinishReason
from espalier.training.checkpoint import write_history
from espalier.training.demonstrations import encode_demonstration
from espalier.training.supervised import DevScore, dev_exact_match
from espalier_search.synthesis.search_wording import search_call
from tests.factories.tiny import tiny_dialect
from tests.factories.training import TASKS, make_task, make_trajectory


class ScriptedRoller:
    """Answers the n-th task right where the n-th reward says so; notes how it was asked."""

    def __init__(self, rewards):
        self._rewards = rewards
        self.asked = {}

    def roll_out(self, tasks, **how):
        self.asked = how
        return [make_trajectory(t, r) for t, r in zip(tasks, self._rewards, strict=True)]


def test_a_figure_that_a_step_lacks_is_null(tmp_path):
    rows = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "dev_em": 0.75}]
    write_history(tmp_path / "history.parquet", rows, ("step", "loss", "dev_em"))
    table = pq.read_table(tmp_path / "history.parquet")
    assert table.to_pydict() == {"step": [1, 2], "loss": [0.5, 0.25], "dev_em": [None, 0.75]}


def test_figures_that_only_some_algorithms_have_follow_the_listed_ones(tmp_path):
    rows = [{"step": 1, "value_loss": 0.5}, {"step": 2, "kl": 0.25}]
    write_history(tmp_path / "history.parquet", rows, ("step", "loss"))
    table = pq.read_table(tmp_path / "history.parquet")
    assert table.column_names == ["step", "loss", "kl", "value_loss"]
    assert table["kl"].to_pylist() == [None, 0.25]


def test_equal_histories_are_equal_files(tmp_path):
    for name in ("a", "b"):
        write_history(tmp_path / name, [{"step": 1, "loss": 0.5}], ("step", "loss"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_dev_score_is_the_share_of_right_greedy_answers():
    roller = ScriptedRoller([1, 0, 1, 1, 0])
    assert dev_exact_match(roller, TASKS).em == pytest.approx(0.6)
    assert roller.asked == {"samples": 1, "temperature": 0.0, "seed": 0}


def test_no_policy_gains_dev_score_by_losing_episodes():
    class Losing(ScriptedRoller):
        def roll_out(self, tasks, **how):
            right, _, _, *others = super().roll_out(tasks, **how)
            lost = replace(right, finish_reason=FinishReason.SANDBOX_LOST, reward={})
            wrong = {"outcome": 0.0, "format": 0.0}
            broke = replace(right, finish_reason=FinishReason.PROGRAM_BROKE_SANDBOX, reward=wrong)
            return [right, lost, broke, *others]

    score = dev_exact_match(Losing([1, 0, 0, 1, 0]), TASKS)
    assert score == DevScore(em=pytest.approx(0.4), lost_episodes=1, broke_sandbox_episodes=1)
    assert score.figures().keys() == {
        "dev_em", "dev_lost_episodes", "dev_broke_sandbox_episodes",
    }  # fmt: skip


def test_a_demonstration_is_trained_on_exactly_where_the_teacher_wrote():
    spoken = (
        search_call("country", "lyon").message(),
        Message(role="tool", content="Lyon | country: France"),
        FinalAnswer("france", "answer").message(),
    )
    task = TASKS[0]
    trajectory = replace(make_trajectory(task, 1), messages=(*task.prompt, *spoken))
    dialect = tiny_dialect()
    sequence = encode_demonstration(trajectory, {task.task_id: task}, lambda _task: dialect)
    written = [t for t, mask in zip(sequence.token_ids, sequence.loss_mask, strict=True) if mask]
    read = [t for t, mask in zip(sequence.token_ids, sequence.loss_mask, strict=True) if not mask]
    assert dialect.text(written) == (
        "<think> country</think><search> lyon</search>"
        "<think> answer</think><answer> france</answer>"
    )
    assert dialect.text(read) == (
        "<|user|> country of lyon?<|assistant|><information> lyon | country: france</information>"
    )


def test_a_demonstration_of_an_unknown_task_is_refused():
    dialect = tiny_dialect()
    with pytest.raises(DataError, match="stranger-0"):
        encode_demonstration(make_trajectory(make_task("stranger"), 1), {}, lambda _task: dialect)
