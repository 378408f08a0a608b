"""Bounds of what a step is cut into: rows, micro-batches, minibatches, shares of a process."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from espalier.config import OptimizerConfig
from espalier.records.step_figures import Per
from espalier.training.optimization import Updater, learning_rate, skipped_warning
from espalier.training.packing import TrainingSequence, convolution_reach, pack, plan_rows
from espalier.training.packing import micro_batches as runs_of_sequences
from espalier.training.parallel import Processes
from espalier.training.rl.models import build_layout, perplexities
from espalier.training.rl.policy_gradient import add_scaled, mean_figures
from espalier.training.rl.rows import micro_batches, minibatches, totals
from espalier.training.rl.sampling import StepRollouts
from espalier.training.scoring import PLAIN, Scorer, score
from tests.factories.tiny import tiny_policy
from tests.factories.training import PROFILE
from tests.factories.training_episodes import CPU, episode, layout


def sequence(*mask, start=20, windows=(0,)):
    return TrainingSequence(
        token_ids=tuple(range(start, start + len(mask))), loss_mask=mask, window_starts=windows
    )


@pytest.mark.parametrize(
    ("lengths", "row_tokens", "gap", "rows"),
    [
        ([5, 5], 10, 0, [[0, 1]]),
        ([5, 5], 12, 2, [[0, 1]]),
        ([5, 5], 11, 2, [[0], [1]]),
        ([3, 8, 2], 10, 0, [[1, 2], [0]]),
        ([20, 1], 10, 0, [[0], [1]]),
        ([4, 4, 4], 4, 3, [[0], [1], [2]]),
        ([2, 3, 2], 7, 0, [[1, 0, 2]]),
    ],
)
def test_a_row_is_filled_to_its_last_token(lengths, row_tokens, gap, rows):
    assert plan_rows(lengths, row_tokens=row_tokens, gap=gap) == rows


def test_packed_tokens_stand_in_their_columns_behind_a_gap():
    batch = pack([sequence(0, 1, 1), sequence(1, 1, start=40)], row_tokens=7, gap=2)
    assert batch.token_ids_RT.tolist() == [[20, 21, 22, 0, 0, 40, 41, 0, 0]]
    assert batch.position_ids_RT.tolist() == [[0, 1, 2, 0, 0, 0, 1, 0, 0]]
    assert batch.segment_ids_RT.tolist() == [[1, 1, 1, 0, 0, 2, 2, 0, 0]]
    assert batch.targets_N.tolist() == [21, 22, 41]
    assert batch.sequence_N.tolist() == [0, 0, 1]
    assert batch.token_N.tolist() == [1, 2, 1]
    assert (batch.num_tokens, batch.num_sequences) == (5, 2)
    dense_BT = batch.dense(torch.tensor([1.0, 2.0, 3.0]), width=3)
    assert dense_BT.tolist() == [[0, 1, 2], [0, 3, 0]]
    assert batch.flat(dense_BT).tolist() == [1, 2, 3]


def test_a_sequence_of_two_contexts_is_packed_as_two():
    both = sequence(1, 1, 1, 1, 1, windows=(0, 2))
    batch = pack([both], row_tokens=3, gap=0)
    assert batch.token_ids_RT.tolist() == [[22, 23, 24], [20, 21, 0]]
    assert batch.position_ids_RT.tolist() == [[0, 1, 2], [0, 1, 0]]
    assert sorted(batch.token_N.tolist()) == [1, 3, 4]
    assert batch.num_sequences == 1
    parts = [sequence(1, 1), sequence(1, 1, 1, start=22)]
    [first_T, second_T] = logprobs(parts, row_tokens=64)
    [found_T] = logprobs([both], row_tokens=64)
    torch.testing.assert_close(found_T, torch.cat([first_T[:2], second_T]))


def logprobs(sequences, *, row_tokens, gap=2):
    model = tiny_policy().model
    batch = pack(sequences, row_tokens=row_tokens, gap=gap)
    with torch.no_grad():
        logprobs_N = score(model, batch).logprobs_N
    return batch.dense(logprobs_N, width=max(len(one.token_ids) for one in sequences))


@pytest.mark.parametrize("row_tokens", [20, 64, 200])
def test_packed_logprobs_equal_those_of_each_sequence_alone(row_tokens):
    rng = random.Random(0)
    sequences = [
        sequence(0, *rng.choices((0, 1), k=rng.randrange(2, 18)), 1, start=rng.randrange(20, 250))
        for _ in range(9)
    ]
    together = logprobs(sequences, row_tokens=row_tokens)
    for one, found_T in zip(sequences, together, strict=True):
        [alone_T] = logprobs([one], row_tokens=row_tokens)
        torch.testing.assert_close(found_T[: len(alone_T)], alone_T, rtol=1e-5, atol=1e-5)
    wrong = logprobs(sequences, row_tokens=200, gap=0)  # a convolution reads over the border
    assert not torch.allclose(together, wrong, atol=1e-4)


def test_a_convolution_reaches_back_by_its_kernel():
    configs = ({"conv_L_cache": 3}, {"conv_L_cache": 1}, {})
    models = [SimpleNamespace(config=SimpleNamespace(**config)) for config in configs]
    assert [convolution_reach(model) for model in models] == [2, 0, 0]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "runs"),
    [
        ([4, 4], 8, [[0, 1]]),
        ([4, 5], 8, [[0], [1]]),
        ([9, 1], 8, [[0], [1]]),
        ([3, 3, 3], 6, [[0, 1], [2]]),
        ([1, 9, 1], 8, [[0], [1], [2]]),
    ],
)
def test_sequences_are_cut_in_their_order(lengths, max_tokens, runs):
    made = [sequence(*[1] * n, start=20 + 10 * i) for i, n in enumerate(lengths)]
    found = runs_of_sequences(made, max_tokens=max_tokens)
    assert [[made.index(s) for s in run] for run in found] == runs


@pytest.mark.parametrize(
    ("units", "max_tokens", "runs"),
    [
        ([(0,), (1,), (2,)], 12, [[(2,), (0,), (1,)]]),
        ([(0,), (1,), (2,)], 11, [[(2,), (0,)], [(1,)]]),
        ([(0,), (1,), (2,)], 5, [[(2,)], [(0,)], [(1,)]]),
        ([(0, 1), (2,)], 12, [[(2,), (0, 1)]]),
        ([(0, 1), (2,)], 11, [[(2,)], [(0, 1)]]),
    ],
)
def test_like_lengths_share_a_run_up_to_its_last_token(units, max_tokens, runs):
    assert micro_batches(units, [4, 6, 2], max_tokens=max_tokens) == runs


@pytest.mark.parametrize(
    ("units", "count", "sizes"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (2, 4, [1, 1]), (7, 3, [3, 3, 1]), (4, 1, [4])],
)
def test_units_are_dealt_in_as_many_parts_as_asked(units, count, sizes):
    parts = minibatches([(n,) for n in range(units)], count=count, rng=random.Random(0))
    assert [len(part) for part in parts] == sizes
    assert sorted(unit for part in parts for unit in part) == [(n,) for n in range(units)]


def test_totals_count_the_whole_minibatch_and_rows_without_loss_apart():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]]).bool()
    found = totals([(0, 1), (2, 3)], mask, max_tokens=30)
    assert (found.tokens, found.sequences, found.rows, found.pairs) == (6, 3, 4, 2)
    assert found.max_tokens == 30
    assert totals([(1,)], mask, max_tokens=30).tokens == 1  # nothing is divided by zero


def test_every_process_takes_equally_many_turns():
    items = list("abcde")
    assert Processes(0, 2).share(items) == [("a", 1.0), ("c", 1.0), ("e", 1.0)]
    assert Processes(1, 2).share(items) == [("b", 1.0), ("d", 1.0), ("a", 0.0)]
    assert Processes().share(items) == [(item, 1.0) for item in items]
    assert [Processes(rank, 6).share("ab")[0][1] for rank in range(3)] == [1.0, 1.0, 0.0]
    assert [Processes(rank, 2).is_first for rank in range(2)] == [True, False]
    alone, tensor = Processes(), torch.ones(2)
    alone.sum([tensor])
    assert tensor.tolist() == [1, 1], "a lone process talks to nobody"
    assert (alone.gather("x"), alone.broadcast("x")) == (["x"], "x")


def test_figures_are_the_mean_of_what_has_them():
    sizes = [{Per.LOSS_TOKEN: 3.0}, {Per.LOSS_TOKEN: 1.0}, {Per.LOSS_TOKEN: 5.0}]
    updates = [{"loss": 1.0, "kl": 3.0, "own": 1.0}, {"loss": 2.0, "own": 2.0}, {}]
    assert mean_figures(updates, sizes) == {"loss": 1.5, "kl": 3.0, "own": 1.5}
    assert mean_figures([], []) == {}
    of_tokens = mean_figures([{"clipped_share": 1.0}, {"clipped_share": 0.0}, {}], sizes)
    assert of_tokens == {"clipped_share": 0.75}, "the larger minibatch weighs more"
    nothing = mean_figures([{"kl": 0.0}], [{Per.LOSS_TOKEN: 0.0}])
    assert nothing == {"kl": 0.0}, "nothing is divided by zero"
    figures = {"loss": 1.0}
    add_scaled(figures, {"loss": torch.tensor(4.0), "kl": 1}, 0.5)
    assert figures == {"loss": 3.0, "kl": 0.5}
    steps = [
        StepRollouts(groups_sampled=n, zero_variance=zero) for n, zero in ((4, 1), (1, 1), (0, 0))
    ]
    assert [step.zero_variance_share for step in steps] == [0.25, 1.0, 0.0]


def test_an_update_is_made_at_the_rate_of_its_step():
    config = OptimizerConfig(learning_rate=1.0, warmup_share=0.5, final_share=0.0)
    model = nn.Linear(1, 1, bias=False)
    updater = Updater(model, config, 4)
    for step in (0, 3):
        model.weight.grad = torch.ones(1, 1)
        updater.apply(step)
        rates = [group["lr"] for group in updater.optimizer.param_groups]
        assert rates == [learning_rate(config, step, 4)] * 2
    assert re.search(r"step 4: 2 ", skipped_warning(4, skipped=2))


def test_a_perplexity_is_that_of_the_actions_alone():
    model, shown = tiny_policy().model, [episode(1, 0), episode(2, 1)]
    how = build_layout(model, PROFILE, CPU, Processes())
    assert (how.row_tokens, how.gap) == (PROFILE.episode.max_tokens, convolution_reach(model))
    found = perplexities(shown, Scorer(model), layout(), PLAIN)
    for trajectory, perplexity in zip(shown, found, strict=True):
        alone = TrainingSequence(token_ids=trajectory.token_ids, loss_mask=trajectory.action_mask)
        with torch.no_grad():
            logprobs_N = score(model, pack([alone], row_tokens=64, gap=2)).logprobs_N
        assert perplexity == pytest.approx(float((-logprobs_N.mean()).exp()), rel=1e-4)
