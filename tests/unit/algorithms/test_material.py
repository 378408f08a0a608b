from itertools import combinations
from statistics import pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.algorithms.material import AttemptSummary, MostVaried, PreferencePairs, Successes


def _attempt(reward, turns=2, tokens=10, ids=None):
    return AttemptSummary(
        reward=reward,
        is_success=reward > 0.5,
        turns=turns,
        action_tokens=tokens,
        token_ids=ids or (int(reward * 100), turns, tokens),
    )


def test_the_best_attempt_is_paired_with_the_worst():
    attempts = [_attempt(0.5), _attempt(1.0), _attempt(0.0), _attempt(0.9)]
    assert PreferencePairs().pairs(attempts) == [(1, 2)]


def test_several_pairs_use_every_attempt_at_most_once():
    attempts = [_attempt(1.0), _attempt(0.0), _attempt(0.9), _attempt(0.1), _attempt(0.5)]
    assert PreferencePairs(per_group=9).pairs(attempts) == [(0, 1), (2, 3)]


def test_among_equal_rewards_fewer_turns_win_and_then_fewer_tokens():
    attempts = [
        _attempt(1.0, turns=3, tokens=5),
        _attempt(1.0, turns=2, tokens=9),
        _attempt(1.0, turns=2, tokens=8),
        _attempt(0.0, turns=2, tokens=8),
        _attempt(0.0, turns=4, tokens=1),
    ]
    assert PreferencePairs().pairs(attempts) == [(2, 4)]


@pytest.mark.parametrize("rewards", [[0.7] * 4, [1.0], []])
def test_a_group_in_which_nothing_differs_makes_no_pair(rewards):
    assert PreferencePairs().pairs([_attempt(reward) for reward in rewards]) == []


def test_a_difference_in_form_alone_makes_no_pair():
    assert PreferencePairs(min_gap=0.5).pairs([_attempt(0.1), _attempt(0.0)]) == []


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 8), st.floats(0.01, 1))
def test_the_chosen_is_always_better_by_the_least_gap(rewards, per_group, min_gap):
    attempts = [_attempt(reward) for reward in rewards]
    pairs = PreferencePairs(per_group=per_group, min_gap=min_gap).pairs(attempts)
    assert len(pairs) <= per_group
    assert all(rewards[chosen] - rewards[rejected] >= min_gap for chosen, rejected in pairs)
    used = [place for pair in pairs for place in pair]
    assert len(used) == len(set(used))


def test_successes_are_kept_and_failures_are_not():
    attempts = [_attempt(1.0), _attempt(0.1), _attempt(0.9), _attempt(0.0)]
    assert Successes().kept(attempts) == [0, 2]


def test_equal_successes_are_imitated_once():
    attempts = [_attempt(1.0, ids=(1, 2)), _attempt(1.0, ids=(3,)), _attempt(1.0, ids=(1, 2))]
    assert Successes().kept(attempts) == [0, 1]


def test_of_many_successes_the_shortest_are_kept():
    attempts = [_attempt(1.0, turns=turns) for turns in (5, 1, 4, 2, 3)]
    assert Successes(per_task=2).kept(attempts) == [1, 3]


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(2, 6))
def test_no_choice_of_as_many_attempts_has_a_larger_variance(rewards, keep):
    kept = MostVaried(keep=keep).kept([_attempt(reward) for reward in rewards])
    assert kept == sorted(set(kept))
    assert len(kept) == min(keep, len(rewards))
    if len(rewards) > keep:
        best = max(pvariance(chosen) for chosen in combinations(rewards, keep))
        assert pvariance([rewards[g] for g in kept]) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([0.1, 0.1, 1.0, 0.1, 0.0, 0.1], [0, 1, 2, 4]),  # the one success, and the worst
        ([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0, 1, 2, 4]),  # as many successes as failures
        ([0.5] * 6, [0, 1, 4, 5]),
    ],
)
def test_best_and_worst_are_left(rewards, kept):
    chosen = MostVaried(keep=4).kept([_attempt(reward) for reward in rewards])
    assert sorted(rewards[g] for g in chosen) == sorted(rewards[g] for g in kept)


@pytest.mark.parametrize(("attempts", "learned"), [(1, 1), (2, 2), (4, 2), (8, 2), (16, 4)])
def test_a_quarter_is_learned_from_and_at_least_two(attempts, learned):
    assert MostVaried().learned(attempts) == learned
    assert len(MostVaried().kept([_attempt(n % 2) for n in range(attempts)])) == learned
