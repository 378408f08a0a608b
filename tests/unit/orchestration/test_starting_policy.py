import pytest

from espalier.config import Profile
from espalier.records import RegistryError
from espalier.steps.given_model import with_starting_policy

RETRAINING = Profile.model_validate({"policy": {"start": "champion"}})


def test_retraining_needs_to_know_the_registry(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RegistryError, match="MLFLOW_TRACKING_URI"):
        with_starting_policy(RETRAINING, tmp_path)


def test_a_resumed_run_keeps_the_champion_it_began_with(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "champion").mkdir()
    started = with_starting_policy(RETRAINING, tmp_path)
    assert started.policy.model == (tmp_path / "champion").resolve()
    assert started.policy.start == "base"
