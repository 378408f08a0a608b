"""One suite over every kind of place: a folder, the stand-in, and a real S3 server where one is."""

import os
from pathlib import Path

import pytest

from espalier.records import ArtifactError, StorageError, open_artifact
from espalier.storage import open_location
from tests.factories.storage import artifact, files, minio_uri
from tests.fakes.s3_stand_in import BUCKET

pytestmark = pytest.mark.contract


@pytest.fixture(params=["folder", "stand-in", "minio"])
def place(request, tmp_path):
    if request.param == "folder":
        return open_location(str(tmp_path / "remote" / "knowledge"), {})
    if request.param == "minio":
        return open_location(minio_uri(), os.environ)
    stand_in = request.getfixturevalue("s3")
    return open_location(f"s3://{BUCKET}/runs/r17/knowledge", stand_in.environment)


def test_what_is_fetched_is_what_was_published(place, tmp_path):
    published = artifact(tmp_path / "here")
    assert place.manifest() is None
    assert place.publish(tmp_path / "here") == published
    assert place.manifest() == published
    assert place.fetch(tmp_path / "there") == published
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert open_artifact(tmp_path / "there") == published


def test_files_of_odd_names_and_many_parts_arrive(place, tmp_path):
    odd = {"empty": b"", "a b+c=d&e.txt": b"1", "\u00fcber/%41.bin": bytes(range(256))}
    artifact(tmp_path / "here", odd | {"weights": os.urandom((17 << 20) + 7)})
    place.publish(tmp_path / "here")
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_publishing_again_replaces_and_leaves_nothing_of_the_former(place, tmp_path):
    artifact(tmp_path / "first", {"kept": b"1", "changed": b"2", "gone": b"3", "a": b"file"})
    artifact(tmp_path / "second", {"kept": b"1", "changed": b"4", "a/b": b"folder"})
    place.publish(tmp_path / "first")
    place.fetch(tmp_path / "there")
    place.publish(tmp_path / "second")
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "second")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_artifact_is_not_replaced_by_one(place, tmp_path, kind):
    artifact(tmp_path / "here")
    place.publish(tmp_path / "here")
    mine = tmp_path / "mine"
    own = mine if kind == "file" else mine / "thesis.txt"
    own.parent.mkdir(exist_ok=True)
    own.write_text("mine")
    with pytest.raises(ArtifactError, match="mine"):
        place.fetch(mine)
    assert own.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} <= {"here", "mine", "remote"}


@pytest.mark.parametrize("name", [".", "", ".."])
def test_a_folder_without_a_name_of_its_own_is_refused(place, tmp_path, monkeypatch, name):
    artifact(tmp_path / "here")
    place.publish(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="--out"):
        place.fetch(Path(name))


def test_an_artifact_is_not_copied_into_itself(tmp_path):
    artifact(tmp_path / "here")
    before = files(tmp_path / "here")
    with pytest.raises(ArtifactError, match="here/copy: "):
        open_location(str(tmp_path / "here"), {}).fetch(tmp_path / "here" / "copy")
    assert files(tmp_path / "here") == before


def test_an_artifact_is_not_copied_over_its_holder(tmp_path):
    artifact(tmp_path / "here")
    artifact(tmp_path / "here" / "inner")
    before = files(tmp_path / "here")
    with pytest.raises(ArtifactError, match="here: "):
        open_location(str(tmp_path / "here" / "inner"), {}).fetch(tmp_path / "here")
    assert files(tmp_path / "here") == before


def test_neither_a_damaged_artifact_nor_a_note_is_published(place, tmp_path):
    artifact(tmp_path / "here", {"rows": b"whole"})
    (tmp_path / "here" / "rows").write_bytes(b"edit")
    with pytest.raises(ArtifactError, match="rows"):
        place.publish(tmp_path / "here")
    place.write("steps/usage.json", b"{}")
    assert place.manifest() is None


def test_a_place_without_an_artifact_says_so(place, tmp_path):
    with pytest.raises(ArtifactError, match=r"no manifest\.json"):
        place.fetch(tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_an_unwritable_folder_is_an_error(place, tmp_path):
    artifact(tmp_path / "here")
    place.publish(tmp_path / "here")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        place.fetch(tmp_path / "file" / "there")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("gs://bucket/key", "gs://"),
        ("s3://bucket", "BUCKET/KEY"),
        ("s3:///key", "BUCKET/KEY"),
        ("s3://Bucket/key", "BUCKET/KEY"),
        ("s3://bucket/a//b", "empty part"),
        ("s3://bucket/a/../b", "empty part"),
    ],
)
def test_an_invalid_uri_is_refused(uri, message):
    with pytest.raises(StorageError, match=message):
        open_location(uri, {})
