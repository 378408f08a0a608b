import argparse
from pathlib import Path

import pytest

from tests.benchmarks import plan


def options(tmp_path: Path, **changed: object) -> argparse.Namespace:
    asked = {"shortened": True, "set": [], "out": tmp_path, **changed}
    return argparse.Namespace(**asked)


@pytest.mark.parametrize("name", plan.SHORTENED)
def test_shortened_profiles_are_read_and_probed(tmp_path, name):
    asked = options(tmp_path)
    probe, run = (plan._profile(name, kind, asked) for kind in plan.KINDS)
    whole = plan._profile(name, "run", options(tmp_path, shortened=False))
    assert run.training.steps <= whole.training.steps
    assert run.threads == 1
    assert probe.policy.hidden_size == run.policy.hidden_size
    assert probe.training.steps < run.training.steps


def test_each_run_is_asked_for_by_its_own_command(tmp_path):
    asked = options(tmp_path, set=["seed=4"])
    command = plan._command("shop", "probe", asked)
    assert command[:4] == ["tests.benchmarks.plan", "shop", "--arm", "shop:probe"]
    assert command[-2:] == ["--set", "seed=4"]
    assert "--shortened" in command
