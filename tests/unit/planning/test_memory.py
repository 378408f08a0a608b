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


def test_the_cache_holds_keys_and_values_of_every_row():
    # 64 rows of 2 pages of 32 tokens, 2 layers x 2 x 128 numbers, half as much again as it grows,
    # and 2 convolutions that keep 2 x 128 numbers a row
    numbers = 64 * 64 * 2 * 2 * 128 * 1.5 + 64 * 2 * 2 * 128
    assert memory(profile()).host["KV cache"] == pytest.approx(4 * numbers / 2**20)


def test_activations_are_counted_by_layer_and_token():
    numbers = 2 * 14 * 128 + 2 * 11 * 128 + 4 * (3 * 128 + 4 * 256)
    masks = 4096 * 128 * 5
    found = memory(profile()).host["activations"]
    assert found == pytest.approx((4096 * numbers * 4 + masks) / 2**20)


def test_a_tree_gathers_keys_and_values_for_each_trajectory():
    tree = dataclasses.replace(TRAINING, micro_batch_tokens=2048, tokens_per_position=2.0)
    whole = dataclasses.replace(TRAINING, micro_batch_tokens=2048)
    found, packed = (memory(profile(), work=work).host for work in (tree, whole))
    # 2 layers of 2 x 128 numbers for each of 4096 tokens
    gathered = 4096 * 2 * 2 * 128 * 4 / 2**20
    assert found["activations"] - packed["activations"] == pytest.approx(gathered)
    assert found["logits"] == packed["logits"]


def test_checkpointed_activations_are_those_of_one_layer():
    kept = memory(profile(hardware={"activation_checkpointing": True})).host["activations"]
    assert kept < memory(profile()).host["activations"] / 2


def test_the_allocator_keeps_by_the_square_of_what_lived():
    asked = profile()
    live = live_mib(TRAINING, asked, SIZE, figures(asked), HOST)
    found = memory(asked).host
    parts = ("activations", "logits", "KV cache", "engine")
    assert live == pytest.approx(sum(found[name] for name in parts))
    assert live + found["kept by the allocator"] == pytest.approx(live**2 / 100)


@pytest.mark.parametrize(("live", "kept"), [(80.0, 0.0), (100.0, 0.0), (300.0, 600.0)])
def test_little_memory_leaves_no_pieces(live, kept):
    assert kept_mib(live, 100.0) == pytest.approx(kept)


def test_blocks_that_are_mapped_leave_no_pieces():
    wide = dataclasses.replace(SIZE, hidden=4096)
    work = dataclasses.replace(TRAINING, micro_batch_tokens=4096)
    found = stage_memory(work, profile(), wide, figures(profile()), HOST).host
    assert found["kept by the allocator"] == 0


def test_trainer_and_engine_compute_on_the_accelerator():
    found = memory(profile(), GPU)
    assert not {"KV cache", "engine", "activations"} & set(found.host)
    assert found.accelerator["KV cache"] == memory(profile()).host["KV cache"]
    assert found.accelerator["activations"] < memory(profile()).host["activations"]
    assert memory(profile()).accelerator == {}


JUDGING = StageWork(judged_tokens=1e5, rows=64, kept_episodes=100)


def test_what_only_samples_takes_memory_of_the_accelerator():
    found = memory(profile(), GPU, JUDGING)
    assert found.accelerator["weights"] == 4.0
    assert found.accelerator["KV cache"] > 0
    assert found.accelerator["context"] > 500
    assert "gradients and optimizer" not in found.accelerator
    assert "KV cache" not in found.host
    # nothing is computed, or on a server
    assert memory(profile(), GPU, StageWork()).accelerator == {}
    on_server = {"engine": "vllm", "vllm": {"url": "http://127.0.0.1:8000"}}
    assert memory(profile(rollout=on_server), GPU, JUDGING).accelerator == {}


def test_half_precision_is_a_second_copy_of_a_large_model():
    large = dataclasses.replace(SIZE, parameters=1 << 30)
    asked = profile()
    half, whole = (
        stage_memory(JUDGING, asked, large, figures(asked), place).accelerator
        for place in (GPU, Placement(accelerator=True, half_precision=False))
    )
    assert half["engine"] - whole["engine"] == pytest.approx(2048.0)
    assert half["weights"] == whole["weights"] == 4096.0


def test_what_an_accelerator_keeps_has_a_bound():
    large = dataclasses.replace(TRAINING, micro_batch_tokens=1 << 20)
    assert memory(profile(), GPU, large).accelerator["kept by the allocator"] == 1024.0


def test_what_does_not_train_has_no_optimizer():
    host = memory(profile(), work=JUDGING).host
    assert "gradients and optimizer" not in host
    assert "activations" not in host
    assert host["KV cache"] > 0


def test_shares_of_sharded_weights_are_smaller():
    sharded = profile(training={"processes": 2, "sharded": True})
    assert memory(sharded).host["gradients and optimizer"] == 6.0


def test_a_server_needs_room_for_all_rows():
    asked = profile(
        rollout={"engine": "vllm", "max_rows": 10, "vllm": {"url": "http://127.0.0.1:8000"}}
    )
    found = server_mib(asked, SIZE)
    assert found["weights"] == 2.0
    assert found["KV cache"] == pytest.approx(2 * 10 * 128 * 2 * 2 * 128 / 2**20)
    assert "KV cache" not in memory(asked).host
    assert server_mib(profile(), SIZE) == {}
