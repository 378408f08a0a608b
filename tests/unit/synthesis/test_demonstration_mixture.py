"""How often each kind of question is demonstrated."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

from espalier.environments.demonstrations import Demonstrations, DetourSchedule, tempered_shares
from espalier.environments.funnel import Funnel
from espalier.records import NullTracker

ASKED = ["chain"] * 80 + ["union"] * 10 + ["intersection"] * 10


@pytest.mark.parametrize(
    ("temperature", "unions", "shown"),
    [
        (1, 200, {"chain": 80, "union": 10, "intersection": 10}),
        (3, 200, {"chain": 50, "union": 25, "intersection": 25}),
        # what a kind lacks goes to the others
        (3, 5, {"chain": 63, "union": 5, "intersection": 32}),
    ],
)
def test_rare_kinds_are_shown_as_often_as_the_profile_asks(temperature, unions, shown):
    available = {"chain": 200, "union": unions, "intersection": 200}
    assert Counter(collected(available, temperature, 100)) == shown


def collected(available, temperature, count):
    questions = [
        SimpleNamespace(task=SimpleNamespace(kind=kind))
        for kind in itertools.chain.from_iterable([k] * n for k, n in available.items())
    ]
    demonstrations = Demonstrations(
        lambda question, detour: SimpleNamespace(kind=question.task.kind, detour=""),
        DetourSchedule(0, []),
        lambda task: task.kind,
        seed=0,
        funnel=Funnel(),
    )
    weights = tempered_shares(ASKED, temperature)
    with NullTracker().progress("trajectories", count) as progress:
        return [t.kind for t in demonstrations.collect(questions, weights, count, progress)]
