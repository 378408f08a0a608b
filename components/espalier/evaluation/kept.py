"""Which episodes are kept for reading: half right, half wrong, spread over the suite."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.records.trajectory import Trajectory


def choose_kept(
    trajectories: Sequence[Trajectory], is_right: Sequence[bool], count: int
) -> list[Trajectory]:
    """At most `count` of them, in their order; where one half is short the other fills up."""
    right = [place for place, correct in enumerate(is_right) if correct]
    wrong = [place for place, correct in enumerate(is_right) if not correct]
    num_right = min(len(right), max(count - count // 2, count - len(wrong)))
    num_wrong = min(len(wrong), count - num_right)
    chosen = sorted([*_spread(right, num_right), *_spread(wrong, num_wrong)])
    return [trajectories[place] for place in chosen]


def _spread(places: Sequence[int], count: int) -> list[int]:
    """`count` of `places`, at equal distances: the suite may be sorted by difficulty."""
    return [places[number * len(places) // count] for number in range(count)]
