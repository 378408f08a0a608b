"""The pass rates of training tasks, and the episodes that they leave out."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from espalier.config import Profile
from espalier.records import NullTracker, write_tasks
from espalier.records.trajectory import FinishReason
from espalier.stages import filter_curriculum
from tests.factories.storage import artifact
from tests.factories.training import TASKS, make_trajectory


class LosingRoller:
    """Of four attempts at a task one is right, one wrong, one lost, and one broke its sandbox."""

    def roll_out(self, tasks, *, samples, temperature, seed):
        assert samples == 4
        lost, broke = FinishReason.SANDBOX_LOST, FinishReason.PROGRAM_BROKE_SANDBOX
        ends = [
            (1, {}),
            (0, {}),
            (1, {"finish_reason": lost, "reward": {}}),
            (0, {"finish_reason": broke}),
        ]
        return [replace(make_trajectory(t, right), **end) for t in tasks for right, end in ends]


def pass_rates(folder, **curriculum):
    """Rows of the pass rates that the stage writes for TASKS."""
    write_tasks(folder / "train.jsonl", TASKS)
    accepted = {"tasks/train.jsonl": (folder / "train.jsonl").read_bytes()}
    inputs = {name: folder / name for name in ("knowledge", "accepted", "warm_policy")}
    for path in inputs.values():
        artifact(path, accepted)
    environment = {"name": "tests.unit.environments.prices:Prices"}
    profile = Profile.model_validate({"environment": environment, "curriculum": curriculum})
    filter_curriculum.run(profile, inputs, folder / "out", NullTracker())
    return pq.read_table(folder / "out" / "pass_rates.parquet").to_pylist()


def test_losses_from_outside_leave_pass_rates_and_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(filter_curriculum.Roller, "open", lambda *_: LosingRoller())
    rows = pass_rates(tmp_path)
    assert len(rows) == len(TASKS)
    for row in rows:
        assert (row["attempts"], row["successes"]) == (3, 1)
        assert (row["lost_episodes"], row["broke_sandbox_episodes"]) == (1, 1)


def test_a_stage_without_candidates_needs_no_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(filter_curriculum.Roller, "open", lambda *_: pytest.fail("is opened"))
    assert pass_rates(tmp_path, enabled=False) == []
