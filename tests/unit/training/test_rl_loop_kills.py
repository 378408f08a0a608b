import pytest
import torch
from torch.nn import functional

from espalier.records import NullTracker
from tests.factories.rl_loops import (
    changed,
    loop_of,
    rollout_threads,
    run_beside,
    run_loop,
    same_weights,
)
from tests.factories.training import PROFILE, Interrupted, InterruptingTracker

pytestmark = pytest.mark.slow

STEPS = PROFILE.training.steps


@pytest.mark.parametrize("killed_after", [1, 2, 3, 5])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(unbroken, warm, tmp_path, killed_after):
    unbroken, unbroken_model = unbroken
    with pytest.raises(Interrupted):
        run_loop(warm, tmp_path / "broken", InterruptingTracker(killed_after))
    resumed, resumed_model = run_loop(warm, tmp_path / "broken")
    assert same_weights(resumed_model, unbroken_model)
    assert resumed.progress.history == unbroken.progress.history
    assert resumed.progress.best_step == unbroken.progress.best_step
    assert resumed.progress.start_dev_em == unbroken.progress.start_dev_em is not None
    assert resumed.progress.last_step == unbroken.progress.last_step


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": {"preset": "ppo"}},
        {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.5, "adaptive": {"target": 0.01}}}},
        {"algorithm": {"preset": "default"}, "replay": {"capacity": 4, "share": 0.5}},
        {
            "algorithm": {"preset": "clip_cov"},
            "epochs": 2,
            "hardware": {"activation_checkpointing": True},
        },
        {"temperature_schedule": {"shape": "cosine", "final": 0.5}},
    ],
    ids=["critic", "adaptive penalty", "replay", "random tokens", "temperature"],
)
def test_what_an_algorithm_keeps_survives_a_kill_bit_for_bit(warm, tmp_path, settings):
    profile = changed(**settings)
    unbroken, unbroken_model = run_loop(warm, tmp_path / "unbroken", profile=profile)
    with pytest.raises(Interrupted):
        run_loop(warm, tmp_path / "broken", InterruptingTracker(3), profile=profile)
    resumed, resumed_model = run_loop(warm, tmp_path / "broken", profile=profile)
    assert resumed.progress.history == unbroken.progress.history
    assert same_weights(resumed_model, unbroken_model)


def test_dropout_goes_on_from_the_state_of_its_generator(warm, tmp_path):
    def run(directory, tracker=None):
        loop, model = loop_of(warm, directory)
        for layer in model.model.layers:
            if hasattr(layer, "self_attn"):
                layer.self_attn.out_proj.register_forward_hook(
                    lambda module, _, output: functional.dropout(output, 0.3, module.training)
                )
        torch.manual_seed(5)
        loop.run(tracker or NullTracker())
        return loop

    unbroken = run(tmp_path / "unbroken")
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", InterruptingTracker(3))
    assert run(tmp_path / "broken").progress.history == unbroken.progress.history


def test_a_killed_asynchronous_run_resumes_and_leaves_no_thread(warm, tmp_path):
    with pytest.raises(Interrupted):
        run_beside(warm, tmp_path, InterruptingTracker(3))
    assert not rollout_threads()
    resumed, _ = run_beside(warm, tmp_path)
    assert [row["step"] for row in resumed.progress.history] == list(range(1, STEPS + 1))
