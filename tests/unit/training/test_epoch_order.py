from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from espalier.training.packing import TrainingSequence
from espalier.training.supervised import EpochOrder


def _sequences(count):
    return [TrainingSequence(token_ids=(n, n), loss_mask=(0, 1)) for n in range(count)]


@given(count=st.integers(1, 12), per_step=st.integers(1, 9), seed=st.integers(0, 9))
def test_every_epoch_holds_every_sequence_once(count, per_step, seed):
    order = EpochOrder(_sequences(count), per_step, seed)
    drawn = [s.token_ids[0] for step in range(3 * count) for s in order.at(step)]
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_a_step_draws_the_same_whatever_was_drawn_before():
    one, other = (EpochOrder(_sequences(10), 4, seed=3) for _ in range(2))
    steps = [one.at(step) for step in range(40)]
    assert [other.at(step) for step in reversed(range(40))] == steps[::-1]


def test_epochs_and_seeds_are_shuffled_differently():
    order = EpochOrder(_sequences(30), 30, seed=0)
    assert order.at(0) != order.at(1)
    assert order.at(0) != EpochOrder(_sequences(30), 30, seed=1).at(0)


def test_a_step_may_be_longer_than_an_epoch():
    drawn = Counter(s.token_ids[0] for s in EpochOrder(_sequences(3), 9, seed=0).at(0))
    assert drawn == {0: 3, 1: 3, 2: 3}
