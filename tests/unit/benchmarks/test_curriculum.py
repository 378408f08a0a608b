"""The benchmark of curricula: its arms, rollouts to a level, ratios, the files it leaves."""

import argparse
import csv
import json

import pytest

from tests.benchmarks.arms import Arm
from tests.benchmarks.curriculum import ARMS, BASE, GROUP_SIZES, profile_of
from tests.benchmarks.curriculum_figures import (
    level_of,
    ratio_over_levels,
    ratios,
    report,
    rollouts_to,
    seed_figures,
)
from tests.unit.docs.fences import ROOT

CURVE = [[100, 0.2], [200, 0.4], [300, 0.3], [400, 0.6]]


def result(curve, informative=0.5):
    return {
        "curve": curve,
        "rollouts": curve[-1][0],
        "informative_share": informative,
        "seconds": 60.0,
    }


SEED = {
    "uniform": result([[0, 0.2], [1000, 0.4], [2000, 0.5]]),
    "predicted": result([[400, 0.2], [1200, 0.6]], informative=0.8),
}


@pytest.mark.parametrize(
    ("level", "rollouts"), [(0.1, 100), (0.3, 150), (0.4, 200), (0.5, 300 + 200 / 3), (0.7, None)]
)
def test_rollouts_are_interpolated_to_the_first_crossing(level, rollouts):
    assert rollouts_to(CURVE, level) == (rollouts and pytest.approx(rollouts))


def test_the_level_is_the_best_of_the_weakest_arm():
    assert level_of(SEED) == 0.5
    arms = seed_figures(SEED)["arms"]
    assert arms["uniform"]["to_level"] == 2000
    assert arms["predicted"]["to_level"] == pytest.approx(1000)
    assert arms["uniform"]["perfect"] == 2.0, "half of the rollouts were in groups with variance"


def test_a_ratio_says_how_many_times_fewer_rollouts():
    found = ratios({0: seed_figures(SEED), 1: seed_figures(SEED)})
    assert found["predicted"]["uniform"] == [2.0, 2.0]
    assert found["uniform"]["predicted"] == [0.5, 0.5]


def test_half_the_speed_takes_twice_the_rollouts():
    slow = [[0, 0.2], [1000, 0.4], [2000, 0.6]]
    fast = [[0, 0.2], [500, 0.4], [1000, 0.6], [1500, 0.8]]
    assert ratio_over_levels(fast, slow) == pytest.approx(2.0)
    assert ratio_over_levels(fast, [[0, 0.2], [900, 0.1]]) is None, "no level above the start"


def test_the_report_leaves_curves_and_a_plot(tmp_path, capsys):
    report({0: SEED, 1: SEED, 2: {}}, tmp_path)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["ratios"]["predicted"]["uniform"] == [2.0, 2.0]
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 5
    assert rows[-1] == {"seed": "1", "arm": "predicted", "rollouts": "1200", "dev_em": "0.6"}
    assert (tmp_path / "curves.svg").read_text().count("</svg>") == 1


@pytest.mark.parametrize(
    ("way", "tasks", "members"), [("half", 8, 16), ("pairs", 64, 2), ("single", 128, 1)]
)
def test_arms_of_half_a_step_differ_in_its_groups_alone(tmp_path, way, tasks, members):
    options = argparse.Namespace(
        profile=ROOT / "pipelines/profiles/tiny.toml", steps=60, set=[], out=tmp_path
    )
    eased, own = (profile_of(Arm(name, 1), options).training for name in ("eased", way))
    assert (own.tasks_per_step, own.group_size) == (tasks, members)
    assert own.evaluate_every == 2 * eased.evaluate_every, "after as many rollouts"
    sizes = {
        name: getattr(eased, name) for name in ("tasks_per_step", "group_size", "evaluate_every")
    }
    alike = own.model_copy(update={**sizes, "algorithm": eased.algorithm})
    assert alike == eased
    assert (own.algorithm == eased.algorithm) == (way != "single")
    assert not own.algorithm.filters


def test_arms_differ_in_how_they_choose_tasks_alone(tmp_path):
    options = argparse.Namespace(
        profile=ROOT / "pipelines/profiles/tiny.toml", steps=60, set=[], out=tmp_path
    )
    base = profile_of(Arm(BASE, 1), options)
    for way in set(ARMS) - {"eased", *GROUP_SIZES}:
        profile = profile_of(Arm(way, 1), options)
        algorithm = profile.training.algorithm
        alike = profile.training.model_copy(
            update={"algorithm": algorithm.model_copy(update={"filters": ()})}
        )
        expected = base.training.model_copy(
            update={"algorithm": base.training.algorithm.model_copy(update={"filters": ()})}
        )
        assert alike == expected
        assert bool(algorithm.filters) == (way != "uniform")
        assert (profile.seed, profile.threads) == (1, 1)
