"""Which version a reference names, where it is written to, and which one led before."""

from __future__ import annotations

from unittest import mock

import pytest

from espalier.records import RegistryError
from espalier.registry import load_version, promote, rollback, versions
from espalier.registry.connection import ensure_database
from espalier.registry.model import parsed_reference
from tests.factories.mlflow_database import empty_database


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("m@champion", ("m", "champion", "")),
        ("models:/m@champion", ("m", "champion", "")),
        ("m/3", ("m", "", "3")),
        ("a/b/3", ("a/b", "", "3")),
        ("a@b@champion", ("a@b", "champion", "")),
    ],
)
def test_a_reference_has_an_alias_or_a_number(text, parts):
    assert tuple(parsed_reference(text)) == parts


@pytest.mark.parametrize("text", ["m", "@champion", "m@", "/3", "m/", "m/x", "m/-1"])
def test_half_a_reference_is_none(text):
    with pytest.raises(RegistryError, match="MODEL"):
        parsed_reference(text)


def test_a_version_is_written_to_an_empty_folder_alone(bench):
    bench.register(0.6)
    reference, place = f"{bench.name}/1", bench.root / "place"
    place.mkdir()
    assert load_version(bench.target.uri, reference, place) == place
    assert (place / "model.safetensors").is_file()
    (bench.root / "file").touch()
    for taken in (place, bench.root / "file"):
        with pytest.raises(RegistryError, match="not empty"):
            load_version(bench.target.uri, reference, taken)
    with pytest.raises(RegistryError, match="below"):
        load_version(bench.target.uri, reference, bench.root / "file" / "below")
    bench.model.tag(bench.model.version("1"), {"espalier.policy_digest": ""})  # somebody else's
    with pytest.raises(RegistryError, match="digests"):
        load_version(bench.target.uri, reference, bench.root / "loaded")


def test_aliases_move_and_are_removed_once(bench):
    bench.register(0.6)
    bench.register(0.7)
    model = bench.model
    model.point("previous", model.version("1"))
    model.point("also", model.version("1"))
    assert model.version("1").aliases == ("also", "previous")
    model.point("previous", model.version("2"))
    assert model.version("previous").version == "2"
    model.point("previous", None)
    model.point("previous", None)
    assert model.find("previous") is None
    assert model.version("2").aliases == ("challenger",)


def test_an_unknown_alias_is_answered_with_the_newest_ten(bench):
    bench.register(0.6)
    client = bench.model.client
    for _ in range(11):
        client.create_model_version(bench.name, "file:///nowhere", "r" * 32)
    with pytest.raises(RegistryError, match=r"12, 11, 10, 9, 8, 7, 6, 5, 4, 3\."):
        bench.model.version("nobody")
    assert [v.version for v in versions(bench.target.uri, bench.name)][-1] == "1"


def test_a_rollback_of_a_moved_alias_finds_the_last_leader(bench):
    for em in (0.4, 0.6):
        bench.lead(em, warm=0.1)
    bench.register(0.1)
    bench.model.point("champion", bench.model.version("3"))
    done = rollback(bench.model)
    assert (done.version, done.previous, done.gate) == ("2", "3", "passed")
    assert bench.model.version("previous").version == "1"
    assert rollback(bench.model).version == "1"
    assert bench.model.find("previous") is None


def test_a_former_champion_may_be_promoted_again(bench):
    for em in (0.4, 0.6):
        bench.lead(em, warm=0.1)
    with pytest.raises(RegistryError, match="promoted"):
        promote(bench.model, bench.gate(), version="1")
    assert bench.model.version("1").gate == "passed"  # for a rollback
    again = promote(bench.model, bench.gate(), version="1", force_reason="the newer one leaks")
    assert (again.version, again.previous, again.gate) == ("1", "2", "forced")
    assert rollback(bench.model).version == "2"


def test_an_empty_database_is_made_and_others_used(tmp_path, monkeypatch):
    path = empty_database(tmp_path / "mlflow.db")
    before = path.read_bytes()
    ensure_database(path)
    assert path.read_bytes() == before
    client = mock.MagicMock()
    monkeypatch.setattr("mlflow.MlflowClient", client)
    (tmp_path / "empty.db").touch()
    ensure_database(tmp_path / "empty.db")
    ensure_database(tmp_path / "new" / "mlflow.db")
    assert client.call_count == 2
    with pytest.raises(RegistryError, match="below"):
        ensure_database(path / "below")
