import pytest

from espalier.records import RegistryError, ServingError
from espalier.registry.promotion import promote
from espalier.serving.source import (
    directory_source,
    fetched_version,
    is_reference,
    registry_uri,
)


def fetch(bench, reference, digest=None):
    with fetched_version(bench.target.uri, reference, digest) as (directory, source):
        assert (directory / "model.safetensors").is_file()
        return directory, source


def test_a_passed_version_is_served_under_model_and_number(bench):
    bench.lead(0.6)
    directory, source = fetch(bench, f"{bench.name}@champion")
    assert source.names == (bench.name, f"models:/{bench.name}/1")
    assert source.described["gate"] == "passed"
    assert source.fingerprint == f"sha256:{bench.model.version('1').policy_digest[:16]}"
    assert not directory.exists()


@pytest.mark.parametrize(
    "reference", ["models:/{}@champion", "models:/{}@challenger", "models:/{}/1"]
)
def test_no_alias_and_no_number_gets_around_the_gate(bench, reference):
    bench.register(0.6)
    bench.model.point("champion", bench.model.version("1"))
    with pytest.raises(ServingError, match="gate"):
        fetch(bench, reference.format(bench.name))


def test_a_forced_version_is_served_only_with_a_reason(bench):
    bench.register(0.1)
    promote(bench.model, bench.gate(), force_reason="the suite was wrong")
    fetch(bench, f"models:/{bench.name}/1")
    bench.model.tag(bench.model.version("1"), {"espalier.gate_reason": " "})
    with pytest.raises(ServingError, match="forced"):
        fetch(bench, f"models:/{bench.name}/1")


def test_only_the_policy_that_was_approved_is_loaded(bench):
    bench.lead(0.6)
    digest = bench.model.version("1").policy_digest
    fetch(bench, f"models:/{bench.name}/1", digest)
    with pytest.raises(ServingError, match="0000 was approved"):
        fetch(bench, f"models:/{bench.name}/1", "0" * 64)


def test_files_that_were_changed_in_the_store_are_not_served(bench):
    bench.lead(0.6)
    version = bench.model.version("1")
    stored = next((bench.model_root() / version.run_id).rglob("model.safetensors"))
    stored.write_bytes(b"others")
    with pytest.raises(RegistryError, match="differs from the registered file"):
        fetch(bench, f"models:/{bench.name}/1")


def test_a_directory_is_served_under_its_own_name(tmp_path):
    folder = tmp_path / "trained_policy"
    (folder / "policy").mkdir(parents=True)
    for directory in (folder, folder / "policy"):
        assert directory_source(directory).names == ("trained_policy",)
    with pytest.raises(ServingError, match="no such directory"):
        directory_source(tmp_path / "elsewhere")


def test_versions_are_told_from_directories(tmp_path):
    (tmp_path / "a@b").mkdir()
    for reference in ("models:/m/3", "m@champion", str(tmp_path / "me@work")):
        assert is_reference(reference)
    for directory in (str(tmp_path / "a@b"), "runs/demo/policy"):
        assert not is_reference(directory)


def test_without_a_registry_none_is_made(tmp_path):
    with pytest.raises(ServingError, match="no such registry"):
        registry_uri(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_the_environment_names_is_the_registry(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", bench.target.uri)
    assert registry_uri(tmp_path) == bench.target.uri
