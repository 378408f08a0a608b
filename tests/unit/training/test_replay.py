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


def test_nothing_is_replayed_before_there_is_enough():
    buffer, none = _buffer(), _buffer(capacity=0)
    for one in (buffer, none):
        one.add([_group(1)], version=0)
        assert _drawn(one) == []
    assert (len(buffer), len(none)) == (1, 0)
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
    drawn = {id(group) for seed in range(40) for group in _drawn(buffer, seed=seed)}
    assert drawn == {id(spread), id(between)}


def test_successes_only_keeps_nothing_else():
    buffer = _buffer(successes_only=True, share=0.125)
    buffer.add([_group(1, (0, 1, 0, 1)), _group(2, (0, 0))], version=0)
    [group] = _drawn(buffer)
    assert [t.total_reward for t in group.trajectories] == [1.0, 1.0]
    assert len(buffer) == 1


def test_only_trajectories_inside_the_perplexity_window_are_replayed():
    group, easy = _group(1, (1, 1, 1, 1)), _group(2, (1, 1))
    ids = [t.token_ids for one in (group, easy) for t in one.trajectories]
    known = dict(zip(ids, (1.04, 1.05, 2.0, 2.01, 1.0, 1.0), strict=True))
    buffer = _buffer(
        lambda trajectories: [known[t.token_ids] for t in trajectories],
        perplexity_window=(1.05, 2.0),
        share=0.125,
    )
    buffer.add([group, easy], version=0)
    [drawn] = _drawn(buffer)
    assert drawn.trajectories == group.trajectories[1:3]


@pytest.mark.parametrize("compares_groups", [True, False])
def test_a_group_shrunk_to_one_is_replayed_only_uncompared(compares_groups):
    buffer = _buffer(
        lambda trajectories: [1.01, 1.5, 2.5][: len(trajectories)],
        compares_groups=compares_groups,
        perplexity_window=(1.05, 2.0),
        share=0.125,
    )
    buffer.add([_group(1, (1, 0, 1))], version=0)
    sizes = [len(group.trajectories) for group in _drawn(buffer)]
    assert sizes == ([] if compares_groups else [1])


def test_a_restored_buffer_draws_what_the_saved_one_would(tmp_path):
    buffer, restored = _buffer(share=0.25), _buffer(share=0.25)
    known = replace(_group(9, version=3), is_silenced=True, expected_reward=0.25)
    for version, group in enumerate([*(_group(n, (0, 1, 1), n) for n in range(3)), known]):
        buffer.add([group], version=version)
    layout = buffer.save(tmp_path / "replay.parquet")
    restored.restore(tmp_path / "replay.parquet", layout)

    def drawn(one, seed):  # log-probs are stored as float32
        return [
            replace(
                group,
                trajectories=tuple(
                    replace(t, behavior_logprobs=tuple(round(x, 4) for x in t.behavior_logprobs))
                    for t in group.trajectories
                ),
            )
            for group in _drawn(one, seed=seed)
        ]

    found = [drawn(restored, seed) for seed in range(9)]
    assert found == [drawn(buffer, seed) for seed in range(9)]
    assert {group.is_silenced for groups in found for group in groups} == {True, False}
    restored.add([], version=40)
    assert len(restored) == 0
