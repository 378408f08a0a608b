from types import SimpleNamespace

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
    assert (finding.state, "mend" in finding.remedy) == ("absent", True)


def test_too_little_of_something_names_both_amounts(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=2**29)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    finding = by_name(examine(tmp_path))["free disk"]
    assert finding.state == "broken"
    assert finding.found == "0.5 GiB, a run wants 2 GiB"
    assert "free space" in finding.remedy
