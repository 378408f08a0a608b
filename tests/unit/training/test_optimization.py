import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import _muon
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from espalier.config import OptimizerConfig
from espalier.records import TrainingError
from espalier.training.muon import hidden_matrices, orthogonalized
from espalier.training.optimization import Updater, learning_rate
from espalier.training.parallel import load_optimizer_state, optimizer_state

CONFIG = OptimizerConfig(learning_rate=1.0, warmup_share=0.1, final_share=0.2)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.1),  # warm-up: ten steps, the first is not lost at zero
        (9, 1.0),
        (10, 1.0),  # the cosine starts at the peak
        (55, 0.6),  # half way: the mean of peak and final
        (99, 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 89 / 90))),
        (500, 0.2),  # past the end it stays
    ],
)
def test_the_schedule_by_hand(step, expected):
    assert learning_rate(CONFIG, step, 100) == pytest.approx(expected)
    for shares in ({"warmup_share": 0.0}, {"warmup_share": 1.0}, {"final_share": 1.0}):
        config = OptimizerConfig(learning_rate=1.0, **({"warmup_share": 0.1} | shares))
        assert 0 <= learning_rate(config, step, 100) <= 1


def _updated(*gradients, **settings):
    """A weight of 1 after updates by these gradients, its updater, and the norms."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    updater = Updater(model, OptimizerConfig(**settings), 10)
    norms = []
    for gradient in gradients:
        model.weight.grad = torch.tensor([[gradient]])
        norms.append(updater.apply(0))
    return model.weight, updater, norms


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(broken):
    weight, updater, [_, norm] = _updated(1.0, broken)
    expected, unbroken, _ = _updated(1.0)
    assert torch.equal(weight, expected)
    assert str(updater.optimizer.state_dict()) == str(unbroken.optimizer.state_dict())
    assert not math.isfinite(norm)
    assert weight.grad is None


def test_the_norm_is_taken_before_clipping():
    _, _, norms = _updated(30.0, max_grad_norm=1.0)
    assert norms == pytest.approx([30.0])


def test_skipped_updates_in_a_row_stop_the_run():
    with pytest.raises(TrainingError, match=r"2 .*max_skipped_updates"):
        _updated(math.nan, 1.0, math.nan, math.nan, max_skipped_updates=2)
    _, updater, _ = _updated(math.nan, 1.0, math.nan, 1.0, max_skipped_updates=2)
    assert updater.skipped_in_a_row == 0


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weight_decay_spares_biases_and_norms(kind):
    model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(2, 2).requires_grad_(requires_grad=False)])
    optimizer = Updater(model, OptimizerConfig(kind=kind, weight_decay=0.5), 10).optimizer
    assert isinstance(optimizer, torch.optim.AdamW), "Muon has no hidden matrix here"
    by_decay = {
        group["weight_decay"]: [tuple(p.shape) for p in group["params"]]
        for group in optimizer.param_groups
    }
    assert by_decay == {0.5: [(1, 3)], 0.0: [(1,)]}, "frozen parameters are left alone"


def _small_policy():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "embed": nn.Embedding(7, 4),
            "conv": nn.Conv1d(4, 4, 3, groups=4),
            "hidden": nn.Linear(4, 6),
            "value": nn.Linear(6, 1),
            "lm_head": nn.Linear(4, 7, bias=False),
        }
    )


def _with_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


MUON = OptimizerConfig(kind="muon", learning_rate=0.1, weight_decay=0.05, max_grad_norm=1e9)


def test_muon_is_torchs_and_adamw_does_all_else(monkeypatch):
    """Torch's own iterations, in bfloat16, are compared by themselves below."""
    monkeypatch.setattr(
        _muon, "_zeropower_via_newtonschulz", lambda update, *_: orthogonalized(update)
    )
    model, expected = _small_policy(), _small_policy()
    updater = Updater(model, MUON, 10)
    matrix = [expected["hidden"].weight]
    rest = [p for p in expected.parameters() if p is not matrix[0]]
    muon = torch.optim.Muon(matrix, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.05},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=MUON.betas,
    )
    for step in range(3):
        _with_gradients(model, step)
        updater.apply(step)
        _with_gradients(expected, step)
        for group in (*muon.param_groups, *adamw.param_groups):
            group["lr"] = learning_rate(MUON, step, 10)
        muon.step()
        adamw.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_an_orthogonalized_matrix_keeps_its_directions(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.T @ orthogonalized(matrix) @ right.T
    assert ((values.diag() > 0.5) & (values.diag() < 1.5)).all()
    assert (values - torch.diag(values.diag())).abs().max() < 1e-4
    coefficients = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)
    theirs = _muon._zeropower_via_newtonschulz(matrix, coefficients, 5, _muon.EPS)
    torch.testing.assert_close(orthogonalized(matrix), theirs.float(), rtol=0.05, atol=0.02)


def test_muon_goes_on_from_its_saved_state():
    unbroken, resumed = _small_policy(), _small_policy()
    updater = Updater(unbroken, MUON, 10)
    for step in range(2):
        _with_gradients(unbroken, step)
        updater.apply(step)
    resumed.load_state_dict(unbroken.state_dict())
    later = Updater(resumed, MUON, 10)
    load_optimizer_state(later.optimizer, deepcopy(optimizer_state(updater.optimizer)))
    for model, going_on in ((unbroken, updater), (resumed, later)):
        _with_gradients(model, 2)
        going_on.apply(2)
    for ours, theirs in zip(resumed.parameters(), unbroken.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("tied", [True, False])
def test_muon_leaves_an_output_layer_alone_whatever_its_name(tied):
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 11}
    config = GPTNeoXConfig(num_hidden_layers=1, tie_word_embeddings=tied, **sizes)
    model = GPTNeoXForCausalLM(config)
    matrices = hidden_matrices(model)
    assert len(matrices) == 4  # two of attention, two of the layer behind it
    assert all(11 not in matrix.shape for matrix in matrices)
