"""Artifacts as they lie in S3 now, as they lay before, and folders downloaded whole."""

import os
import shutil

import pytest

from espalier.records import ArtifactError, open_artifact
from espalier.storage import restore_names
from espalier.storage.layout import COLLECTING, object_name
from tests.factories.storage import artifact, files, key_of, s3_place
from tests.fakes.s3_stand_in import MIN_PART_BYTES, Object, Refusal

PREFIX = "runs/r17/knowledge"
SAME = {"rows": b"1", "again/rows": b"1", "deep/er/weights": b"w" * 99, "empty": b""}


def put_as_before(s3, folder):
    """As 0.1 and Kubeflow's launcher write a folder: every file under its name."""
    for name, content in files(folder).items():
        s3.objects[f"{PREFIX}/{name}"] = Object(content, "0" * 32)


def downloaded(s3, folder):
    """As Kubeflow's launcher reads: every object below the prefix."""
    for key, stored in s3.objects.items():
        path = folder / key.removeprefix(f"{PREFIX}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored.content)
    return folder


def test_an_artifact_that_lies_as_before_is_fetched(s3, tmp_path):
    published = artifact(tmp_path / "here", SAME)
    put_as_before(s3, tmp_path / "here")
    place = s3_place(s3)
    assert place.manifest() == published
    assert place.lost_files(published) == []
    assert place.fetch(tmp_path / "there") == published
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_manifest_without_sizes_is_fetched(s3, tmp_path):
    artifact(tmp_path / "here", SAME)
    text = open_artifact(tmp_path / "here").model_dump_json(exclude={"sizes"})
    (tmp_path / "here" / "manifest.json").write_text(text)
    put_as_before(s3, tmp_path / "here")
    s3_place(s3).fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")
    s3_place(s3, "else/where").publish(tmp_path / "there")


def test_replacing_leaves_what_lies_as_before_readable(s3, tmp_path):
    former = artifact(tmp_path / "first", {"rows": b"1", "gone": b"3"})
    artifact(tmp_path / "second", {"rows": b"2"})
    put_as_before(s3, tmp_path / "first")
    s3.fail("PUT", "manifest.json", "drop", times=999)
    with pytest.raises(Exception, match="could not write"):
        s3_place(s3).publish(tmp_path / "second")
    assert s3_place(s3).fetch(tmp_path / "there") == former
    s3.faults.clear()
    s3_place(s3).publish(tmp_path / "second")
    s3_place(s3).fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "second")


def test_a_lost_cut_or_damaged_object_is_put_back(s3, tmp_path):
    published = artifact(tmp_path / "here", SAME)
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    before = {key: stored.content for key, stored in s3.objects.items()}
    del s3.objects[key_of(b"1")]
    s3.objects[key_of(b"w" * 99)] = Object(b"w" * 98, "0" * 32)
    assert place.lost_files(published) == ["again/rows", "deep/er/weights", "rows"]
    with pytest.raises(ArtifactError, match=r"Run the stage ingest again|not those that were"):
        place.fetch(tmp_path / "there")
    s3.requests.clear()
    assert place.publish(tmp_path / "here") == published
    assert place.lost_files(published) == []
    assert {key: stored.content for key, stored in s3.objects.items()} == before
    assert s3.counted("PUT") == 2, "what is whole is not sent again"
    s3.objects[key_of(b"1")] = Object(b"2", "1" * 32)  # of the same size
    place.publish(tmp_path / "here")
    assert s3.objects[key_of(b"1")].content == b"1"


def test_a_server_whose_etags_are_no_sums_is_published_to(s3, tmp_path):
    """As with encryption by keys of the customer: sizes alone are compared then."""
    published = artifact(tmp_path / "here", SAME)
    answered, count = s3.answer, iter(range(10_000))

    def encrypted(stand_in, request, body):
        status, headers, content = answered(stand_in, request, body)
        key = request.path.removeprefix("/espalier/")
        if request.command == "PUT":
            etag = f"{next(count):032x}"
            s3.objects[key] = s3.objects[key]._replace(etag=etag)
            headers["ETag"] = f'"{etag}"'
        return status, headers, content

    s3.answer = encrypted
    for _ in range(2):
        assert s3_place(s3).publish(tmp_path / "here") == published
        s3_place(s3).fetch(tmp_path / "there")
        shutil.rmtree(tmp_path / "there")


@pytest.mark.parametrize("harm", [None, "other bytes", "cut"])
def test_an_upload_in_parts_is_judged_by_our_own_sums(s3, tmp_path, harm):
    """No server has to tell the sum of an upload in parts (seaweedfs#11401)."""
    weights = os.urandom(2 * MIN_PART_BYTES + 7)
    artifact(tmp_path / "here", {"weights": weights})
    answered = s3.answer

    def without_sums(stand_in, request, body):
        if request.command == "HEAD":
            raise Refusal(405, "MethodNotAllowed", "nobody may ask for sums")
        status, headers, content = answered(stand_in, request, body)
        stored = s3.objects.get(key_of(weights))
        if stored is not None and request.command == "POST":
            s3.objects[key_of(weights)] = stored._replace(etag="none-3")
            content = content.replace(stored.etag.encode(), b"none-3")
        return status, headers, content

    s3.answer = without_sums
    published = s3_place(s3).publish(tmp_path / "here")
    assert s3.counted("PUT", "partNumber") == 3
    assert s3_place(s3).lost_files(published) == []
    stored = s3.objects[key_of(weights)]
    if harm is not None:
        held = weights[:-1] if harm == "cut" else weights[:-1] + bytes([weights[-1] ^ 1])
        s3.objects[key_of(weights)] = stored._replace(content=held)
        with pytest.raises(ArtifactError, match="not those that were published"):
            s3_place(s3).fetch(tmp_path / "there")
        return
    s3_place(s3).fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_equal_files_are_sent_and_fetched_once(s3, tmp_path):
    artifact(tmp_path / "here", {f"copy-{n}": b"the same" for n in range(9)})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    place.fetch(tmp_path / "there")
    assert s3.counted("PUT", "sha256/") == s3.counted("GET", "sha256/") == 1
    assert files(tmp_path / "there") == files(tmp_path / "here")


@pytest.mark.parametrize("replaced", [True, False])
def test_a_downloaded_prefix_gets_its_names_back(s3, tmp_path, replaced):
    """What a Kubeflow step finds where a step on Ray has published, left-overs among it."""
    if replaced:
        artifact(tmp_path / "former", {"rows": b"former", "gone": b"3"})
        put_as_before(s3, tmp_path / "former")
    published = artifact(tmp_path / "here", SAME)
    s3_place(s3).publish(tmp_path / "here")
    s3.objects[f"{PREFIX}/{object_name('0' * 64)}"] = Object(b"garbage", "0" * 32)
    s3.objects[f"{PREFIX}/{COLLECTING}"] = Object(b"", "0" * 32)
    folder = downloaded(s3, tmp_path / "there")
    assert open_artifact(restore_names(folder)) == published
    assert files(folder) == files(tmp_path / "here")
    assert open_artifact(restore_names(folder)) == published


def test_a_downloaded_folder_with_names_is_left_as_it_is(s3, tmp_path):
    artifact(tmp_path / "here", SAME | {"sha256/of mine": b"5"})
    before = {path: path.stat().st_ino for path in (tmp_path / "here").rglob("*")}
    restore_names(tmp_path / "here")
    assert {path: path.stat().st_ino for path in (tmp_path / "here").rglob("*")} == before
    assert restore_names(tmp_path / "nowhere") == tmp_path / "nowhere"


def test_a_downloaded_prefix_without_a_content_says_so(s3, tmp_path):
    artifact(tmp_path / "here", SAME)
    s3_place(s3).publish(tmp_path / "here")
    del s3.objects[key_of(b"1")]
    folder = downloaded(s3, tmp_path / "there")
    with pytest.raises(ArtifactError, match="Publish the artifact again"):
        restore_names(folder)
