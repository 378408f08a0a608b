import random
from dataclasses import replace

import pytest

from espalier.config import ReplayConfig
from espalier.training.rl.replay import ReplayBuffer
from espalier.training.rl.rows import Group
from tests.factories.training_episodes import episode


def _group(number, rewards=(0, 1), version=0):
    trajectories = [
        episode(number * 10 + n, reward, version=version) for n, reward in enumerate(rewards)
    ]
    return Group(trajectories=tuple(trajectories), baseline_reward=0.5)


def _buffer(perplexities=None, *, compares_groups=False, **settings):
    def unknown(trajectories):
        raise AssertionError("nothing asked for perplexities")

    config = ReplayConfig(**({"capacity": 4} | settings))
    return ReplayBuffer(config, perplexities or unknown, compares_groups=compares_groups)


def _drawn(buffer, step_groups=8, seed=0):
    return buffer.draw(step_groups, random.Random(seed))


def test_without_capacity_nothing_is_kept():
    buffer = _buffer(capacity=0)
    buffer.add([_group(1)], version=0)
    assert len(buffer) == 0
    assert _drawn(buffer) == []


def test_nothing_is_replayed_before_there_is_enough():
    buffer = _buffer()
    buffer.add([_group(1)], version=0)
    assert _drawn(buffer) == []
    buffer.add([_group(2)], version=1)
    assert len(_drawn(buffer)) == 2  # a quarter of eight


def test_the_oldest_leaves_first():
    buffer = _buffer(share=0.5)
    groups = [_group(number, version=number) for number in range(6)]
    for version, group in enumerate(groups):
        buffer.add([group], version=version)
    assert {id(group) for group in _drawn(buffer)} == {id(group) for group in groups[2:]}


def test_a_group_of_too_old_a_policy_is_forgotten():
    buffer = _buffer(max_staleness=3)
    buffer.add([_group(1), _group(2)], version=0)
    buffer.add([], version=2)
    assert len(buffer) == 2
    buffer.add([_group(3, version=2)], version=3)  # it was under way for a version
    assert len(buffer) == 1
    buffer.add([], version=5)
    assert len(buffer) == 0


def test_priority_evicts_and_draws_by_reward_deviation():
    flat, spread = _group(1, (0, 0, 0, 0)), _group(2, (0, 1, 0, 1))
    buffer = _buffer(order="priority", share=0.125, capacity=2)
    buffer.add([flat, spread], version=0)
    assert all(_drawn(buffer, seed=seed) == [spread] for seed in range(20))
    between = _group(3, (0, 0, 0, 1))
    buffer.add([between], version=1)
    assert {id(g) for seed in range(40) for g in _drawn(buffer, seed=seed)} == {
        id(spread),
        id(between),
    }


def test_successes_only_keeps_nothing_else():
    buffer = _buffer(successes_only=True, share=0.125)
    buffer.add([_group(1, (0, 1, 0, 1)), _group(2, (0, 0))], version=0)
    [group] = _drawn(buffer)
    assert [t.total_reward for t in group.trajectories] == [1.0, 1.0]
    assert len(buffer) == 1


def test_only_trajectories_inside_the_perplexity_window_are_replayed():
    known = {}

    def perplexities(trajectories):
        return [known[t.token_ids] for t in trajectories]

    group, easy = _group(1, (1, 1, 1, 1)), _group(2, (1, 1))
    found = (1.04, 1.05, 2.0, 2.01)
    known |= dict(zip([t.token_ids for t in group.trajectories], found, strict=True))
    known |= dict.fromkeys([t.token_ids for t in easy.trajectories], 1.0)
    buffer = _buffer(perplexities, perplexity_window=(1.05, 2.0), share=0.125)
    buffer.add([group, easy], version=0)
    [drawn] = _drawn(buffer)
    assert drawn.trajectories == group.trajectories[1:3]


@pytest.mark.parametrize("compares_groups", [True, False])
def test_a_group_shrunk_to_one_is_replayed_only_uncompared(compares_groups):
    def perplexities(trajectories):
        return [1.01, 1.5, 2.5][: len(trajectories)]

    buffer = _buffer(
        perplexities,
        compares_groups=compares_groups,
        perplexity_window=(1.05, 2.0),
        share=0.125,
    )
    buffer.add([_group(1, (1, 0, 1))], version=0)
    sizes = [len(group.trajectories) for group in _drawn(buffer)]
    assert sizes == ([] if compares_groups else [1])


def test_what_is_known_of_a_group_outlives_a_restart(tmp_path):
    buffer = _buffer(share=0.25)
    buffer.add([replace(_group(1), is_silenced=True, expected_reward=0.25), _group(2)], version=0)
    layout = buffer.save(tmp_path / "replay.parquet")
    restored = _buffer(share=0.25)
    restored.restore(tmp_path / "replay.parquet", layout)
    known = {(group.is_silenced, group.expected_reward) for group in _drawn(restored)}
    assert known == {(True, 0.25), (False, None)}


def test_a_restored_buffer_draws_what_the_saved_one_would(tmp_path):
    buffer = _buffer(share=0.25)
    for version in range(4):
        buffer.add([_group(version, (0, 1, 1), version)], version=version)
    layout = buffer.save(tmp_path / "replay.parquet")
    restored = _buffer(share=0.25)
    restored.restore(tmp_path / "replay.parquet", layout)

    def rounded(groups):  # log-probs are stored as float32
        return [
            [
                replace(t, behavior_logprobs=tuple(round(x, 4) for x in t.behavior_logprobs))
                for t in group.trajectories
            ]
            for group in groups
        ]

    for seed in range(5):
        assert rounded(_drawn(restored, seed=seed)) == rounded(_drawn(buffer, seed=seed))
    restored.add([], version=40)
    assert len(restored) == 0


def test_a_window_below_the_least_perplexity_is_refused():
    with pytest.raises(ValueError, match="perplexity_window"):
        ReplayConfig(capacity=4, perplexity_window=(0.5, 2.0))
