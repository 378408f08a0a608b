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


def test_an_absent_server_and_a_small_disk_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv(doctor.KFP_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**29))
    found = by_name(examine(tmp_path))
    states = {name: found[name].state for name in ("MLflow", "Kubeflow", "free disk")}
    assert states == {"MLflow": "broken", "Kubeflow": "absent", "free disk": "broken"}
    assert "http://127.0.0.1:9" in found["MLflow"].found
    assert "0.5 GiB" in found["free disk"].found
    assert found["Kubeflow"].remedy
