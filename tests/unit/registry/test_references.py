"""Which version a reference names, where it is written to, and which one led before."""

from __future__ import annotations

import pytest

from espalier.records import RegistryError
from espalier.registry import load_version, promote, rollback, versions
from espalier.registry.connection import ensure_database
from espalier.registry.model import parsed_reference
from espalier.registry.tracking import commit_of, operator, source_tags
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


def test_a_version_may_be_written_to_an_empty_folder(bench):
    bench.register(0.6)
    reference, place = f"{bench.name}/1", bench.root / "place"
    place.mkdir()
    assert load_version(bench.target.uri, reference, place) == place
    assert (place / "model.safetensors").is_file()
    (bench.root / "file").touch()
    with pytest.raises(RegistryError, match="not empty"):
        load_version(bench.target.uri, reference, bench.root / "file")
    with pytest.raises(RegistryError, match="below"):
        load_version(bench.target.uri, reference, bench.root / "file" / "below")


def test_a_version_of_somebody_else_cannot_be_checked(bench):
    bench.register(0.6)
    bench.model.tag(bench.model.version("1"), {"espalier.policy_digest": ""})
    with pytest.raises(RegistryError, match="digests"):
        load_version(bench.target.uri, f"{bench.name}/1", bench.root / "loaded")


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


def test_a_registered_policy_is_described_by_its_figures(bench):
    bench.register(0.6, warm=0.2)
    version = bench.model.version("1")
    entry = bench.model.client.get_model_version(bench.name, "1")
    assert entry.description == "EM 60.0 % of 200 held-out questions"
    assert version.tags["espalier.questions"] == "200"
    assert "espalier.gain_em" not in version.tags
    assert len(version.created) == len("2026-03-04T12:00:00+00:00")


def test_a_rollback_of_a_moved_alias_finds_the_last_leader(bench):
    for em in (0.4, 0.6):
        bench.register(em, warm=0.1)
        promote(bench.model, bench.gate())
    bench.register(0.1)
    bench.model.point("champion", bench.model.version("3"))
    done = rollback(bench.model)
    assert (done.version, done.previous, done.gate) == ("2", "3", "passed")
    assert bench.model.version("previous").version == "1"
    assert rollback(bench.model).version == "1"
    assert bench.model.find("previous") is None


def test_without_a_champion_there_is_nothing_to_roll_back(bench):
    bench.register(0.6)
    with pytest.raises(RegistryError, match="champion"):
        rollback(bench.model)


def test_a_former_champion_may_be_promoted_again(bench):
    for em in (0.4, 0.6):
        bench.register(em, warm=0.1)
        promote(bench.model, bench.gate())
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
    made = []
    monkeypatch.setattr(
        "mlflow.MlflowClient",
        lambda tracking_uri: made.append(tracking_uri) or empty_client(),
    )
    (tmp_path / "empty.db").touch()
    ensure_database(tmp_path / "empty.db")
    ensure_database(tmp_path / "new" / "mlflow.db")
    assert len(made) == 2
    with pytest.raises(RegistryError, match="below"):
        ensure_database(path / "below")


def empty_client():
    class Client:
        def search_experiments(self, max_results):
            return []

    return Client()


def test_a_source_says_who_and_from_where(tmp_path, monkeypatch):
    tags = source_tags()
    assert tags["mlflow.source.git.dirty"] in ("True", "False")
    assert tags["mlflow.user"] == operator() != ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None
