"""Names in the place of a model directory: where they lead, and what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from espalier.chain import STAGES
from espalier.config import PolicyConfig, Profile, models_folder, named_reference, open_named_model
from espalier.policy.loading import save_policy
from espalier.records import PolicyError
from tests.factories.named_models import added_model
from tests.factories.tiny import tiny_policy


def profile(model):
    return Profile.model_validate({"policy": {"model": str(model)}})


def read(model):
    """Digests of what prepare_policy reads of a model."""
    return STAGES["prepare_policy"].external_inputs(profile(model))


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.delenv("ESPALIER_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert models_folder() == Path("/cache/espalier/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/anna")
    assert models_folder() == Path("/home/anna/.cache/espalier/models")
    monkeypatch.setenv("ESPALIER_MODELS", "/models")
    assert models_folder() == Path("/models")


def test_any_other_path_stays_a_directory():
    assert named_reference(Path("models/smollm2")) is None
    assert PolicyConfig(model=Path("models/smollm2")).directory == Path("models/smollm2")
    assert PolicyConfig().directory is None


def test_a_digest_of_another_length_is_refused():
    with pytest.raises(ValidationError, match="12 characters"):
        PolicyConfig(model=Path("smollm2@d056"))


def test_the_content_counts_and_not_the_cache(tmp_path, monkeypatch):
    here = added_model(monkeypatch, tmp_path / "here")
    first = read("small"), STAGES["prepare_policy"].digest(profile("small"))
    there = added_model(monkeypatch, tmp_path / "there")
    assert (read("small"), STAGES["prepare_policy"].digest(profile("small"))) == first
    assert here == there
    added_model(monkeypatch, tmp_path / "other", tiny_policy(seed=1))
    assert read("small") != first[0]


def test_the_dialect_of_a_name_needs_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path))
    assert PolicyConfig(model=Path("smollm2")).model_dialect == "tags"
    assert PolicyConfig(model=Path("smollm2"), dialect="hermes").model_dialect == "hermes"
    before = STAGES["synthesize"].external_inputs(profile("smollm2"))
    assert before.keys() == {"policy.dialect"}


def test_what_was_not_added_is_told_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPALIER_MODELS", str(tmp_path))
    with pytest.raises(PolicyError, match="models add smollm2"):
        open_named_model(named_reference(Path("smollm2")))


def test_a_changed_file_is_refused_by_name(tmp_path, monkeypatch):
    reference = added_model(monkeypatch, tmp_path)
    save_policy(tiny_policy(seed=1), reference.directory)
    with pytest.raises(
        PolicyError, match=r"damaged \(.*model\.safetensors.*models add small` repairs"
    ):
        open_named_model(reference)


def test_other_content_than_named_is_refused(tmp_path, monkeypatch):
    found = added_model(monkeypatch, tmp_path)
    asked = named_reference(Path("small@0123456789ab"))
    with pytest.raises(PolicyError, match=str(found)):
        open_named_model(asked)
    assert open_named_model(named_reference(Path(str(found)))).content.startswith(found.digest)
