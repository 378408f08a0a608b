"""The pass rates of training tasks, and the episodes that they leave out."""

from dataclasses import replace

import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.records import NullTracker
from espalier.records.trajectory import FinishReason
from espalier.stages import filter_curriculum
from tests.factories.training import TASKS, make_trajectory

LOST, BROKE = FinishReason.SANDBOX_LOST, FinishReason.PROGRAM_BROKE_SANDBOX


class LosingRoller:
    """Of four attempts at a task one is right, one wrong, one lost, and one broke its sandbox."""

    def roll_out(self, tasks, *, samples, temperature, seed):
        assert samples == 4
        return [attempt for task in tasks for attempt in _attempts(task)]


def _attempts(task):
    right, wrong = make_trajectory(task, 1), make_trajectory(task, 0)
    return [
        right,
        wrong,
        replace(right, finish_reason=LOST, reward={}),
        replace(wrong, finish_reason=BROKE),
    ]


def test_losses_from_outside_leave_pass_rates_and_are_counted(tmp_path):
    tallies = filter_curriculum._judge(Profile(), LosingRoller(), TASKS, NullTracker())
    path = tmp_path / "pass_rates.parquet"
    filter_curriculum._write_pass_rates(path, TASKS, tallies, TASKS[:1])
    for row in pq.read_table(path).to_pylist():
        assert (row["attempts"], row["successes"]) == (3, 1)
        assert (row["lost_episodes"], row["broke_sandbox_episodes"]) == (1, 1)
