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
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value, folder in (
        ("HOME", "/home/anna", "/home/anna/.cache/espalier/models"),
        ("XDG_CACHE_HOME", "/cache", "/cache/espalier/models"),
        ("ESPALIER_MODELS", "/models", "/models"),
    ):
        monkeypatch.setenv(name, value)
        assert models_folder() == Path(folder)


def test_other_paths_stay_directories_and_short_digests_are_refused():
    assert named_reference(Path("models/smollm2")) is None
    assert PolicyConfig(model=Path("models/smollm2")).directory == Path("models/smollm2")
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


def test_a_changed_file_or_other_content_is_refused_by_name(tmp_path, monkeypatch):
    reference = added_model(monkeypatch, tmp_path)
    assert open_named_model(named_reference(Path(str(reference)))).content.startswith(
        reference.digest
    )
    with pytest.raises(PolicyError, match=str(reference)):
        open_named_model(named_reference(Path("small@0123456789ab")))
    save_policy(tiny_policy(seed=1), reference.directory)
    with pytest.raises(PolicyError, match=r"damaged .*model\.safetensors.*models add small"):
        open_named_model(reference)
