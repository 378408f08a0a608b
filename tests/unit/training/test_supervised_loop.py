import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.config import OptimizerConfig
from espalier.records import DataError, FinalAnswer, Message, NullTracker, TrainingError
from espalier.records.trajectory import FinishReason
from espalier.training.checkpoint import CheckpointStore, cloned_weights, write_history
from espalier.training.demonstrations import encode_demonstration
from espalier.training.optimization import learning_rate
from espalier.training.packing import TrainingSequence
from espalier.training.supervised import DevScore, EpochOrder, SupervisedLoop, dev_exact_match
from espalier_search.synthesis.search_wording import search_call
from tests.factories.rl_loops import same_weights
from tests.factories.tiny import tiny_dialect, tiny_policy
from tests.factories.training import (
    TASKS,
    Interrupted,
    InterruptingTracker,
    demonstration,
    make_trajectory,
    supervised_plan,
)

STEPS = 8


def _train(directory, tracker=None, identity="run", **changes):
    model = tiny_policy().model
    plan = supervised_plan(**({"steps": STEPS, "checkpoint_every": 3} | changes))
    result = SupervisedLoop(model, plan, CheckpointStore(directory, identity)).run(
        tracker or NullTracker()
    )
    return model, result


def _judge_of(scores):
    """A score function that gives the next score at every call."""
    remaining = iter(scores)
    return lambda: DevScore(next(remaining))


def test_the_loss_falls_and_real_tokens_are_counted(tmp_path):
    _, result = _train(tmp_path, steps=25)
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < 0.15 * losses[0]
    assert result.tokens_per_s > 0
    _, result = _train(tmp_path / "one", sequences_at=lambda _: [demonstration(TASKS[0])])
    assert result.tokens == STEPS * len(demonstration(TASKS[0]).token_ids)


@pytest.mark.parametrize("killed_after", [1, 3, 8])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path, killed_after):
    unbroken, whole = _train(tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        _train(tmp_path / "broken", InterruptingTracker(killed_after))
    resumed, rest = _train(tmp_path / "broken")
    assert same_weights(resumed, unbroken)
    assert rest.history == whole.history


def _breaking_gradients(model, *numbers):
    """Every gradient of these updates, counted from 1, is NaN."""
    seen = iter(range(1, 99))
    model.get_input_embeddings().weight.register_hook(
        lambda gradient: gradient * (math.nan if next(seen) in numbers else 1.0)
    )


def test_an_update_by_a_broken_gradient_is_skipped_and_counted(tmp_path):
    model = tiny_policy().model
    _breaking_gradients(model, 2)
    plan = supervised_plan(steps=3, micro_batch_tokens=10_000)
    result = SupervisedLoop(model, plan, CheckpointStore(tmp_path, "run")).run(NullTracker())
    assert [row["skipped_updates"] for row in result.history] == [0, 1, 0]
    assert all(math.isfinite(value) for row in result.history for value in row.values())
    assert all(p.isfinite().all() for p in model.parameters())


def test_skipped_updates_are_counted_across_a_restart(tmp_path):
    def train(numbers, steps):
        model = tiny_policy().model
        _breaking_gradients(model, *numbers)
        plan = supervised_plan(steps=4, micro_batch_tokens=10_000, checkpoint_every=2)
        store = CheckpointStore(tmp_path, "run")
        SupervisedLoop(model, plan, store).run(InterruptingTracker(steps))

    with pytest.raises(Interrupted):
        train((1, 2), 3)
    with pytest.raises(TrainingError, match="3 optimizer updates"):
        train((1,), 9)


def test_a_run_resumed_between_two_scores_keeps_the_better_weights(tmp_path):
    with pytest.raises(Interrupted):
        _train(tmp_path / "broken", InterruptingTracker(4), dev_score=_judge_of([0.9]))
    resumed, rest = _train(tmp_path / "broken", dev_score=_judge_of([0.5, 0.6]))
    best, _ = _train(tmp_path / "whole", dev_score=_judge_of([0.9, 0.5, 0.6]))
    assert same_weights(resumed, best)
    assert rest.best_step == 3


def test_a_killed_run_of_other_settings_is_not_taken_up(tmp_path):
    with pytest.raises(Interrupted):
        _train(tmp_path, InterruptingTracker(4), identity="other")
    fresh, _ = _train(tmp_path)
    unbroken, _ = _train(tmp_path / "unbroken")
    assert same_weights(fresh, unbroken)


@pytest.mark.parametrize("scores", [(0.2, 0.8, 0.4), (0.5, 0.5, 0.4)])  # of equal ones the latest
def test_the_weights_with_the_best_score_are_kept(tmp_path, scores):
    weights, remaining, model = [], iter(scores), tiny_policy().model

    def judge_and_look():
        weights.append(cloned_weights(model))
        return DevScore(next(remaining))

    plan = supervised_plan(steps=STEPS, checkpoint_every=3, dev_score=judge_and_look)
    result = SupervisedLoop(model, plan, CheckpointStore(tmp_path, "run")).run(NullTracker())
    assert result.best_step == 6
    assert all(torch.equal(weights[1][name], t) for name, t in model.state_dict().items())
    assert [row["step"] for row in result.history] == list(range(1, STEPS + 1))
    judged = {row["step"]: row["dev_em"] for row in result.history if "dev_em" in row}
    assert judged == dict(zip((3, 6, 8), scores, strict=True))
    assert result.history[4]["learning_rate"] == learning_rate(plan.optimizer, 4, STEPS)


def test_micro_batches_change_nothing_but_rounding(tmp_path):
    """The loss is a mean over the tokens of a step, however the step is cut."""
    slow = OptimizerConfig(learning_rate=1e-4)
    one, whole = _train(tmp_path / "a", steps=2, micro_batch_tokens=4096, optimizer=slow)
    other, parts = _train(tmp_path / "b", steps=2, micro_batch_tokens=64, optimizer=slow)
    assert [row["loss"] for row in parts.history] == pytest.approx(
        [row["loss"] for row in whole.history], rel=1e-4
    )
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def _sequences(count):
    return [TrainingSequence(token_ids=(n, n), loss_mask=(0, 1)) for n in range(count)]


@given(count=st.integers(1, 12), per_step=st.integers(1, 9), seed=st.integers(0, 9))
def test_every_epoch_holds_every_sequence_once(count, per_step, seed):
    order = EpochOrder(_sequences(count), per_step, seed)
    drawn = [s.token_ids[0] for step in range(3 * count) for s in order.at(step)]
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_a_step_draws_the_same_whatever_was_drawn_before():
    one, other = (EpochOrder(_sequences(10), 4, seed=3) for _ in range(2))
    steps = [one.at(step) for step in range(40)]
    assert [other.at(step) for step in reversed(range(40))] == steps[::-1]


def test_epochs_and_seeds_are_shuffled_differently():
    order = EpochOrder(_sequences(30), 30, seed=0)
    assert order.at(0) != order.at(1)
    assert order.at(0) != EpochOrder(_sequences(30), 30, seed=1).at(0)


class ScriptedRoller:
    """Answers the n-th task right where the n-th reward says so; notes how it was asked."""

    def __init__(self, rewards):
        self._rewards = rewards
        self.asked = {}

    def roll_out(self, tasks, **how):
        self.asked = how
        return [make_trajectory(t, r) for t, r in zip(tasks, self._rewards, strict=True)]


def test_figures_that_a_step_lacks_are_null_and_files_reproducible(tmp_path):
    rows = [{"step": 1, "loss": 0.5, "value_loss": 0.5}, {"step": 2, "dev_em": 0.75, "kl": 0.25}]
    for name in ("a", "b"):
        write_history(tmp_path / name, rows, ("step", "loss", "dev_em"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    table = pq.read_table(tmp_path / "a")
    assert table.column_names == ["step", "loss", "dev_em", "kl", "value_loss"]
    assert table.to_pylist()[0] == {
        "step": 1, "loss": 0.5, "dev_em": None, "kl": None, "value_loss": 0.5,
    }  # fmt: skip


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
    task, dialect = TASKS[0], tiny_dialect()
    trajectory = replace(make_trajectory(task, 1), messages=(*task.prompt, *spoken))
    sequence = encode_demonstration(trajectory, {task.task_id: task}, lambda _task: dialect)
    pairs = list(zip(sequence.token_ids, sequence.loss_mask, strict=True))
    assert dialect.text([token for token, mask in pairs if mask]) == (
        "<think> country</think><search> lyon</search>"
        "<think> answer</think><answer> france</answer>"
    )
    assert dialect.text([token for token, mask in pairs if not mask]) == (
        "<|user|> country of lyon?<|assistant|><information> lyon | country: france</information>"
    )
    with pytest.raises(DataError, match=task.task_id):
        encode_demonstration(trajectory, {}, lambda _task: dialect)
