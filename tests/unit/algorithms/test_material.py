import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.algorithms.material import AttemptSummary, PreferencePairs, Successes


def _attempt(reward, turns=2, tokens=10, ids=None):
    return AttemptSummary(
        reward=reward,
        is_success=reward > 0.5,
        turns=turns,
        action_tokens=tokens,
        token_ids=ids or (int(reward * 100), turns, tokens),
    )


@pytest.mark.parametrize(
    ("rewards", "rule", "pairs"),
    [
        ([0.5, 1.0, 0.0, 0.9], PreferencePairs(), [(1, 2)]),
        ([1.0, 0.0, 0.9, 0.1, 0.5], PreferencePairs(per_group=9), [(0, 1), (2, 3)]),
        ([0.7] * 4, PreferencePairs(), []),
        ([], PreferencePairs(), []),
        ([0.1, 0.0], PreferencePairs(min_gap=0.5), []),
    ],
)
def test_the_best_attempts_are_paired_with_the_worst(rewards, rule, pairs):
    assert rule.pairs([_attempt(reward) for reward in rewards]) == pairs


def test_among_equal_rewards_fewer_turns_win_and_then_fewer_tokens():
    attempts = [
        _attempt(1.0, turns=3, tokens=5),
        _attempt(1.0, turns=2, tokens=9),
        _attempt(1.0, turns=2, tokens=8),
        _attempt(0.0, turns=2, tokens=8),
        _attempt(0.0, turns=4, tokens=1),
    ]
    assert PreferencePairs().pairs(attempts) == [(2, 4)]


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 8), st.floats(0.01, 1))
def test_the_chosen_is_always_better_by_the_least_gap(rewards, per_group, min_gap):
    attempts = [_attempt(reward) for reward in rewards]
    pairs = PreferencePairs(per_group=per_group, min_gap=min_gap).pairs(attempts)
    assert len(pairs) <= per_group
    assert all(rewards[chosen] - rewards[rejected] >= min_gap for chosen, rejected in pairs)
    used = [place for pair in pairs for place in pair]
    assert len(used) == len(set(used))


def test_successes_are_kept_once_and_of_many_the_shortest():
    attempts = [_attempt(1.0), _attempt(0.1), _attempt(0.9), _attempt(0.0)]
    assert Successes().kept(attempts) == [0, 2]
    equal = [_attempt(1.0, ids=(1, 2)), _attempt(1.0, ids=(3,)), _attempt(1.0, ids=(1, 2))]
    assert Successes().kept(equal) == [0, 1]
    attempts = [_attempt(1.0, turns=turns) for turns in (5, 1, 4, 2, 3)]
    assert Successes(per_task=2).kept(attempts) == [1, 3]
