import re
from types import SimpleNamespace

import pytest
import torch

from espalier.orchestration import doctor
from espalier.orchestration.doctor import examine


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_a_whole_installation_has_nothing_broken_in_its_packages(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(doctor.KFP_VARIABLE, raising=False)
    found = by_name(examine(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    for name in ("python", "torch", "torch threads", "mlflow", "kfp", "profiles", "MLflow"):
        assert found[name].state == "ok", found[name]
    assert found["Kubeflow"].state == "absent"
    assert doctor.KFP_VARIABLE in found["Kubeflow"].remedy


def test_a_tracking_server_that_is_away_breaks_the_laptop_path(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    finding = by_name(examine(tmp_path))["MLflow"]
    assert finding.state == "broken"
    assert "http://127.0.0.1:9" in finding.found


def test_an_unreachable_kubeflow_is_reported_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv(doctor.KFP_VARIABLE, "http://127.0.0.1:9")
    finding = by_name(examine(tmp_path))["Kubeflow"]
    assert (finding.state, "correct" in finding.remedy) == ("absent", True)


def test_too_little_of_something_names_both_amounts(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=2**29)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    finding = by_name(examine(tmp_path))["free disk"]
    assert finding.state == "broken"
    assert re.search(r"0\.5 GiB.* 2 GiB", finding.found)
    assert "free space" in finding.remedy


@pytest.mark.parametrize(
    ("speeds", "advice"),
    [
        ({("float32", 2): 100, ("float32", 1): 55, ("bfloat16", 2): 60}, ""),
        ({("float32", 2): 56, ("float32", 1): 55, ("bfloat16", 2): 60}, "threads = 1"),
        ({("float32", 2): 100, ("float32", 1): 55, ("bfloat16", 2): 400}, '"bfloat16" is faster'),
    ],
)
def test_settings_that_suit_the_machine_are_named(tmp_path, monkeypatch, speeds, advice):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(doctor, "gigaflops", lambda torch, kind, threads: speeds[kind, threads])
    finding = by_name(examine(tmp_path))["matrix products"]
    assert finding.state == "ok"
    assert f"{speeds['float32', 2]} GFLOPS" in finding.found
    assert advice in finding.remedy
    assert bool(advice) == bool(finding.remedy)


def test_measuring_leaves_the_threads_alone():
    before = torch.get_num_threads()
    assert doctor.gigaflops(torch, "float32", 1) > 0
    assert torch.get_num_threads() == before
