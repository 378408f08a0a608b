"""What a server may do to us: be away, be slow, break off, damage, refuse."""

import logging
import os

import pytest
import tenacity
import urllib3

from espalier.records import ArtifactError, StorageAwayError, StorageError
from espalier.storage import S3Retries
from espalier.storage.requests import S3Requests
from espalier.storage.transfer import FileSums, MultipartUpload, upload
from tests.factories.storage import HASTY, artifact, files, key_of, s3_place, settings
from tests.fakes.s3_stand_in import BUCKET, SECRET_KEY

LARGE = (11 << 20) + 7


@pytest.mark.parametrize("kind", ["error", "slow", "drop", "half", "lost"])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_a_transient_failure_is_retried(s3, tmp_path, method, kind):
    artifact(tmp_path / "here")
    s3.fail(method, "", kind, times=3)
    place = s3_place(s3, retries=HASTY)
    place.publish(tmp_path / "here")
    s3.fail(method, "", kind, times=3)
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


@pytest.mark.parametrize("pattern", ["uploads", "uploadId"])
@pytest.mark.parametrize("kind", ["error", "drop", "lost"])
def test_starting_and_completing_an_upload_are_retried(s3, tmp_path, pattern, kind):
    artifact(tmp_path / "here", {"weights": os.urandom(LARGE)})
    s3.fail("POST", pattern, kind, times=2)
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_an_unreachable_server_is_named_with_the_operation(s3, tmp_path):
    artifact(tmp_path / "here", {"rows": b"1"})
    s3.fail("PUT", "sha256/", "error", times=99)
    with pytest.raises(StorageAwayError) as caught:
        s3_place(s3).publish(tmp_path / "here")
    assert f"write s3://{BUCKET}/{key_of(b'1')}" in str(caught.value)
    assert s3.endpoint in str(caught.value)
    with pytest.raises(StorageAwayError, match=r"127\.0\.0\.1:9"):
        s3_place(s3, endpoint="http://127.0.0.1:9").manifest()


def test_an_unreachable_server_is_retried_for_two_minutes(s3, pauses):
    place = s3_place(s3, retries=S3Retries())
    s3.fail("GET", "", "error", times=99)
    with pytest.raises(StorageAwayError, match="for 120 s"):
        place.manifest()
    assert pauses[:5] == [0.5, 1, 2, 4, 8]
    assert set(pauses[5:]) == {8}
    assert 112 < sum(pauses) <= 120


def test_the_retry_time_starts_at_the_first_failure(s3, pauses):
    requests = S3Requests(settings(s3, retries=S3Retries(first_pause_s=60.0, longest_pause_s=60.0)))
    faults = [urllib3.exceptions.ProtocolError("broken"), None]

    def slow_transfer():
        tenacity.time.sleep(500)  # longer than the whole retries
        if fault := faults.pop(0):
            raise fault
        return "whole"

    assert requests.send("read a large object", slow_transfer) == "whole"


@pytest.mark.parametrize("changes", [{"access_key": "nobody"}, {"secret_key": "wrong"}])
def test_refused_credentials_are_reported_but_not_shown(s3, changes):
    with pytest.raises(StorageError, match="credentials") as caught:
        s3_place(s3, **changes).manifest()
    assert not isinstance(caught.value, StorageAwayError)
    assert len(s3.requests) == 1
    assert all(secret not in str(caught.value) for secret in (SECRET_KEY, "wrong"))


def test_an_address_without_s3_server_is_an_error(s3, monkeypatch):
    import tests.fakes.s3_stand_in as module

    def no_xml(*_):
        return 404, {"Content-Type": "text/html"}, b"<html>not here</html>"

    monkeypatch.setattr(module, "_handled", no_xml)
    with pytest.raises(StorageError, match="an S3 server"):
        s3_place(s3).manifest()


@pytest.mark.parametrize("left", [None, b"oth"], ids=["anew", "resumed"])
def test_damaged_bytes_are_refused_and_leave_nothing(s3, tmp_path, left):
    artifact(tmp_path / "here", {"rows": b"whole"})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    s3.objects[key_of(b"whole")] = (b"other", "0")
    draft = tmp_path / ".there.fetch"
    draft.mkdir()
    if left:
        (draft / "rows.espalier-partial").write_bytes(left)
    with pytest.raises(ArtifactError, match=key_of(b"whole")):
        place.fetch(tmp_path / "there")
    assert list(draft.iterdir()) == []
    assert not (tmp_path / "there").exists()


def test_neither_log_nor_repr_shows_a_secret(s3, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    artifact(tmp_path / "here")
    s3.fail("PUT", "", "error", times=2)
    place = s3_place(s3, session_token="a-token-of-mine")
    place.publish(tmp_path / "here")
    shown = caplog.text + repr(settings(s3, session_token="a-token-of-mine")) + repr(vars(place))
    assert "next attempt" in caplog.text
    assert SECRET_KEY not in shown
    assert "a-token-of-mine" not in shown
    assert "Signature=" not in shown


def test_a_publication_that_breaks_off_leaves_the_former_artifact(s3, tmp_path):
    former = artifact(tmp_path / "first", {"rows": b"1", "both": b"0"})
    artifact(tmp_path / "second", {"rows": b"2", "both": b"0"})
    place = s3_place(s3)
    place.publish(tmp_path / "first")
    s3.fail("PUT", key_of(b"2"), "error", times=99)
    with pytest.raises(StorageAwayError):
        place.publish(tmp_path / "second")
    assert place.fetch(tmp_path / "there") == former
    assert files(tmp_path / "there") == files(tmp_path / "first")
    assert s3.counted("DELETE") == 0


def test_publishing_what_is_there_already_sends_nothing(s3, tmp_path):
    artifact(tmp_path / "here")
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    s3.requests.clear()
    s3.page = 1000
    place.publish(tmp_path / "here")
    assert s3.methods() == {"GET": 3}  # the manifest, the listing, the manifest again


@pytest.mark.parametrize("dates_uploads", [True, False])
def test_a_killed_publication_resumes_with_the_missing_parts(s3, tmp_path, dates_uploads):
    s3.dates_uploads = dates_uploads
    artifact(tmp_path / "here", {"small": b"1", "weights": os.urandom(LARGE)})
    s3.fail("PUT", "partNumber=3", "error", times=99)
    with pytest.raises(StorageAwayError):
        s3_place(s3).publish(tmp_path / "here")
    s3.faults.clear()
    s3.requests.clear()
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    assert s3.counted("PUT", "partNumber=") == 1
    assert s3.counted("PUT", key_of(b"1")) == 0
    assert s3.buckets[BUCKET].uploads == {}
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_parts_of_another_content_are_not_reused(s3, tmp_path):
    requests = S3Requests(settings(s3))
    first, second = os.urandom(LARGE), os.urandom(LARGE)
    (tmp_path / "w").write_bytes(first)
    s3.fail("PUT", "partNumber=3", "error", times=99)
    with pytest.raises(StorageAwayError):
        upload(requests, tmp_path / "w", FileSums.of(tmp_path / "w"), BUCKET, "w")
    s3.faults.clear()
    (tmp_path / "w").write_bytes(second)
    upload(requests, tmp_path / "w", FileSums.of(tmp_path / "w"), BUCKET, "w")
    assert s3.objects["w"][0] == second


def test_left_over_uploads_of_the_same_object_are_forgotten(s3, tmp_path):
    requests = S3Requests(settings(s3))
    for _ in range(3):
        MultipartUpload(requests, BUCKET, "w").begin()
    MultipartUpload(requests, BUCKET, "w-other").begin()
    (tmp_path / "w").write_bytes(os.urandom(LARGE))
    upload(requests, tmp_path / "w", FileSums.of(tmp_path / "w"), BUCKET, "w")
    assert [upload.key for upload in s3.buckets[BUCKET].uploads.values()] == ["w-other"]


def test_an_interrupted_download_resumes_in_the_middle(s3, tmp_path):
    artifact(tmp_path / "here", {"weights": os.urandom(3 << 20)})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    s3.requests.clear()
    s3.fail("GET", "sha256/", "half", times=4)
    place.fetch(tmp_path / "there")
    assert s3.counted("GET", "sha256/") == 5
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_a_killed_fetch_resumes(s3, tmp_path):
    content = os.urandom(3 << 20)
    artifact(tmp_path / "here", {"rows": b"1", "weights": content})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    draft = tmp_path / ".there.fetch"
    draft.mkdir()
    (draft / "rows").write_bytes(b"1")
    (draft / "weights.espalier-partial").write_bytes(content[: 2 << 20])
    (draft / "of-another-version").write_bytes(b"")
    s3.requests.clear()
    place.fetch(tmp_path / "there")
    assert s3.counted("GET", key_of(b"1")) == 0
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert not draft.exists()


@pytest.mark.parametrize("left", [b"other bytes", b"", None])
def test_what_an_older_version_left_half_fetched_does_no_harm(s3, tmp_path, left):
    content = os.urandom(4000)
    artifact(tmp_path / "here", {"weights": content})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    draft = tmp_path / ".there.fetch"
    draft.mkdir()
    (draft / "weights.espalier-partial").write_bytes(content + b"more" if left is None else left)
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")


def test_fetching_what_is_there_already_reads_the_manifest_alone(s3, tmp_path):
    artifact(tmp_path / "here")
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    place.fetch(tmp_path / "there")
    s3.requests.clear()
    place.fetch(tmp_path / "there")
    assert s3.methods() == {"GET": 1}
