import math

import pytest
import torch

from espalier.config import OptimizerConfig
from espalier.records import NullTracker, TrainingError
from espalier.training.checkpoint import CheckpointStore, cloned_weights
from espalier.training.optimization import learning_rate
from espalier.training.supervised import DevScore, SupervisedLoop
from tests.factories.tiny import tiny_policy
from tests.factories.training import (
    TASKS,
    Interrupted,
    InterruptingTracker,
    demonstration,
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


def _equal(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_the_loss_falls(tmp_path):
    _, result = _train(tmp_path, steps=25)
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < 0.15 * losses[0]


@pytest.mark.parametrize("killed_after", [1, 3, 4, 7, 8])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path, killed_after):
    unbroken, whole = _train(tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        _train(tmp_path / "broken", InterruptingTracker(killed_after))
    resumed, rest = _train(tmp_path / "broken")
    assert _equal(resumed, unbroken)
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
    assert _equal(resumed, best)
    assert rest.best_step == 3


def test_a_killed_run_of_other_settings_is_not_taken_up(tmp_path):
    with pytest.raises(Interrupted):
        _train(tmp_path, InterruptingTracker(4), identity="other")
    fresh, _ = _train(tmp_path)
    unbroken, _ = _train(tmp_path / "unbroken")
    assert _equal(fresh, unbroken)


def test_the_weights_with_the_best_score_are_kept(tmp_path):
    weights = []

    scores = iter([0.2, 0.8, 0.4])

    def judge_and_look():
        weights.append(cloned_weights(model))
        return DevScore(next(scores))

    model = tiny_policy().model
    plan = supervised_plan(steps=STEPS, checkpoint_every=3, dev_score=judge_and_look)
    result = SupervisedLoop(model, plan, CheckpointStore(tmp_path, "run")).run(NullTracker())
    assert result.best_step == 6
    assert all(torch.equal(weights[1][name], t) for name, t in model.state_dict().items())


def test_of_equal_scores_the_latest_wins(tmp_path):
    _, result = _train(tmp_path, dev_score=_judge_of([0.5, 0.5, 0.4]))
    assert result.best_step == 6


def test_history_has_every_step_and_every_checkpoints_score(tmp_path):
    _, result = _train(tmp_path, dev_score=_judge_of([0.1, 0.2, 0.3]))
    assert [row["step"] for row in result.history] == list(range(1, STEPS + 1))
    assert {row["step"]: row["dev_em"] for row in result.history if "dev_em" in row} == {
        3: 0.1,
        6: 0.2,
        8: 0.3,
    }
    optimizer = supervised_plan().optimizer
    assert result.history[4]["learning_rate"] == learning_rate(optimizer, 4, STEPS)


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


def test_throughput_counts_real_tokens(tmp_path):
    _, result = _train(tmp_path, sequences_at=lambda _: [demonstration(TASKS[0])])
    assert result.tokens == STEPS * len(demonstration(TASKS[0]).token_ids)
    assert result.tokens_per_s > 0
