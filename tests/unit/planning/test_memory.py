import dataclasses

import pytest

from espalier.config import Profile
from espalier.planning.figures import Figures, assumed
from espalier.planning.memory import Placement, kept_mib, live_mib, server_mib, stage_memory
from espalier.planning.sizes import PolicySize
from espalier.planning.work import StageWork

HOST = Placement(accelerator=False, half_precision=False)
GPU = Placement(accelerator=True, half_precision=True)
SIZE = PolicySize(
    parameters=1 << 20, trained=1 << 20, vocabulary=1024, hidden=128, feed_forward=256,
    attention_layers=2, other_layers=2, key_value_width=128,
)  # fmt: skip
TRAINING = StageWork(
    trained_tokens=1e6, rollout_tokens=1e5, micro_batch_tokens=4096, rows=64, kept_episodes=100
)
JUDGING = StageWork(judged_tokens=1e5, rows=64, kept_episodes=100)
LENGTHS = {"episode_tokens": 64.0, "action_tokens": 32.0, "policy_mib": 1000.0}
LENGTHS["unfragmented_mib"] = 100.0


def profile(**sections):
    return Profile.model_validate({"episode": {"max_tokens": 128}, **sections})


def figures(asked):
    return Figures(**{**assumed(asked), **LENGTHS})


def memory(asked, place=HOST, work=TRAINING):
    return stage_memory(work, asked, SIZE, figures(asked), place)


def test_weights_gradients_and_moments_take_16_bytes_a_parameter():
    host = memory(profile()).host
    assert host["weights"] + host["gradients and optimizer"] == 16.0
    assert host["best weights"] == 4.0
    sharded = memory(profile(training={"processes": 2, "sharded": True})).host
    assert sharded["gradients and optimizer"] == 6.0
    checkpointed = memory(profile(hardware={"activation_checkpointing": True})).host
    assert checkpointed["activations"] < host["activations"] / 2
    judging = memory(profile(), work=JUDGING).host
    assert not judging.keys() & {"gradients and optimizer", "activations"}
    assert judging["KV cache"] > 0


def test_the_allocator_keeps_by_the_square_of_what_lived():
    asked = profile()
    live = live_mib(TRAINING, asked, SIZE, figures(asked), HOST)
    found = memory(asked).host
    parts = ("activations", "logits", "KV cache", "engine")
    assert live == pytest.approx(sum(found[name] for name in parts))
    assert live + found["kept by the allocator"] == pytest.approx(live**2 / 100)
    assert [kept_mib(live, 100.0) for live in (80.0, 100.0, 300.0)] == pytest.approx([0, 0, 600])
    # blocks that are mapped leave no pieces, and what an accelerator keeps has a bound
    wide = dataclasses.replace(SIZE, hidden=4096)
    mapped = stage_memory(TRAINING, asked, wide, figures(asked), HOST).host
    assert mapped["kept by the allocator"] == 0
    large = dataclasses.replace(TRAINING, micro_batch_tokens=1 << 20)
    assert memory(asked, GPU, large).accelerator["kept by the allocator"] == 1024.0


def test_trainer_and_engine_compute_on_the_accelerator():
    found = memory(profile(), GPU)
    assert not {"KV cache", "engine", "activations"} & set(found.host)
    assert found.accelerator["KV cache"] == memory(profile()).host["KV cache"]
    assert found.accelerator["activations"] < memory(profile()).host["activations"]
    assert memory(profile()).accelerator == {}


def test_what_only_samples_takes_memory_of_the_accelerator():
    found = memory(profile(), GPU, JUDGING)
    assert found.accelerator["weights"] == 4.0
    assert found.accelerator["KV cache"] > 0
    assert found.accelerator["context"] > 500
    assert "gradients and optimizer" not in found.accelerator
    assert "KV cache" not in found.host
    assert memory(profile(), GPU, StageWork()).accelerator == {}
    # or on a server
    on_server = {"engine": "vllm", "max_rows": 10, "vllm": {"urls": "http://127.0.0.1:8000"}}
    asked = profile(rollout=on_server)
    assert memory(asked, GPU, JUDGING).accelerator == {}
    served = server_mib(asked, SIZE)
    assert served["weights"] == 2.0
    assert served["KV cache"] == pytest.approx(2 * 10 * 128 * 2 * 2 * 128 / 2**20)
