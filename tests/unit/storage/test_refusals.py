"""Which answers of a server are asked for again, which are refusals, and what is said of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import urllib3
from minio.error import InvalidResponseError, S3Error, ServerError

from espalier.records import StorageAwayError, StorageError
from espalier.storage import S3Retries, open_location
from espalier.storage.requests import S3Requests
from tests.factories.storage import artifact, files, key_of, s3_place, settings
from tests.fakes.s3_stand_in import BUCKET


def refused(code, status, message="why"):
    return S3Error(SimpleNamespace(status=status), code, message, "r", "request", "host", BUCKET)


@pytest.fixture
def attempts(s3, pauses):
    """How often a request that meets this error is sent, and what becomes of it."""
    requests = S3Requests(settings(s3, retries=S3Retries(first_pause_s=10, longest_pause_s=10)))

    def count(error):
        made = []

        def request():
            made.append(1)
            raise error

        with pytest.raises(StorageError) as caught:
            requests.send("read it", request)
        return len(made), caught.value

    return count


@pytest.mark.parametrize(
    "error",
    [
        *(refused("Other", status) for status in (408, 429, 500, 502, 503, 504)),
        refused("SlowDown", 400),
        refused("IncompleteBody", 400),
        ServerError("down", 500),
        InvalidResponseError(500, "text/html", "<html>"),
        urllib3.exceptions.ProtocolError("broken off"),
    ],
    ids=str,
)
def test_a_fault_that_may_pass_is_asked_again(attempts, error):
    """Every ten seconds until two minutes after the first fault."""
    made, outcome = attempts(error)
    assert made == 13
    assert isinstance(outcome, StorageAwayError)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (refused("AccessDenied", 403), "allow"),
        (refused("RequestTimeTooSkewed", 403), "set them"),
        (refused("NoSuchBucket", 404), "create it"),
        (refused("NoSuchKey", 404), "no such object"),
        (refused("ExpiredToken", 400), "credentials"),
        (refused("Other", 501, ""), r"\(Other\)\. Is AWS_ENDPOINT_URL_S3"),
        (refused("Other", 400), r"\(Other: why\)"),
        (ServerError("odd", 499), "an S3 server"),
        (InvalidResponseError(499, "text/html", "<html>"), "an S3 server"),
        (urllib3.exceptions.SSLError("not trusted"), "not trusted"),
    ],
    ids=str,
)
def test_a_refusal_is_said_at_once(attempts, error, said):
    made, outcome = attempts(error)
    assert made == 1
    assert not isinstance(outcome, StorageAwayError)
    with pytest.raises(StorageError, match=said):
        raise outcome


TEXTS = (
    "", "A header you provided implies functionality that is not implemented",
    "The Content-MD5 you specified did not match what we received.",  # MinIO's BadDigest
    "checksum mismatch", "ContentChecksumMismatch", "XAmzContentSHA256Mismatch", "NoSuchKey",
    "PreconditionFailed", "SlowDown", "Please reduce your request rate.", "InternalError",
    "Non-XML response from server; Response code: 500", "Response code: 503", "\u8bf7\u91cd\u8bd5",
)  # fmt: skip
"""What servers write beside a code, each in its own words, and the codes of other errors."""


@pytest.mark.parametrize(
    ("code", "status", "tries"),
    [("BadDigest", 400, 13), ("SlowDown", 503, 13), ("AccessDenied", 403, 1), ("Other", 400, 1)],
)
def test_a_refusal_is_judged_by_its_code_alone(attempts, code, status, tries):
    """The same refusal has other words on MinIO than on SeaweedFS (diracx#980)."""
    for text in TEXTS:
        assert attempts(refused(code, status, text))[0] == tries, text
        page = InvalidResponseError(status, "text/html", f"<p>{text}</p>")
        assert attempts(page)[0] == (13 if status >= 500 else 1), text


@pytest.mark.parametrize("text", TEXTS)
def test_a_lost_condition_is_known_by_its_code(s3, text):
    requests = S3Requests(settings(s3))

    def meets(code, status):
        def request():
            raise refused(code, status, text)

        return requests.send_if("write it", request)

    assert meets("PreconditionFailed", 412) is meets("NoSuchKey", 404) is None
    with pytest.raises(StorageError, match="AccessDenied"):
        meets("AccessDenied", 403)


def test_only_what_is_not_there_is_none(s3):
    requests = S3Requests(settings(s3))

    def meets(code):
        def request():
            raise refused(code, 404)

        return requests.send_or_none("read it", request)

    assert meets("NoSuchKey") is meets("NoSuchUpload") is None
    with pytest.raises(StorageError, match="no such bucket"):
        meets("NoSuchBucket")


@pytest.mark.parametrize("harm", ["cut", "delete"])
def test_files_that_somebody_harms_all_the_time_are_no_success(s3, tmp_path, harm):
    artifact(tmp_path / "here", {"rows": b"content"})
    answered = s3.answer

    def harmed(stand_in, request, body):
        answer = answered(stand_in, request, body)
        if request.command == "PUT":
            s3.objects.pop(key_of(b"content"))
            if harm == "cut":
                s3.objects[key_of(b"content")] = (b"cut", "0")
        return answer

    s3.answer = harmed
    with pytest.raises(StorageError, match="Another program deletes or changes objects"):
        s3_place(s3).publish(tmp_path / "here")
    assert s3_place(s3).manifest() is None


def test_a_server_without_ranges_begins_again(s3, tmp_path):
    content = bytes(range(256)) * 40
    artifact(tmp_path / "here", {"weights": content})
    place = s3_place(s3)
    place.publish(tmp_path / "here")
    answered = s3.answer

    def whole(stand_in, request, body):
        del request.headers["Range"]
        return answered(stand_in, request, body)

    s3.answer = whole
    (tmp_path / ".there.fetch").mkdir()
    (tmp_path / ".there.fetch" / "weights.espalier-partial").write_bytes(content[:1000])
    s3.requests.clear()
    place.fetch(tmp_path / "there")
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert s3.counted("GET", key_of(content)) == 1


def test_a_folder_is_its_own_copy(tmp_path):
    published = artifact(tmp_path / "here")
    place = open_location(str(tmp_path / "here"), {})
    before = {path: path.stat().st_ino for path in (tmp_path / "here").iterdir()}
    assert place.fetch(tmp_path / "here") == place.publish(tmp_path / "here") == published
    assert {path: path.stat().st_ino for path in (tmp_path / "here").iterdir()} == before


def test_a_small_file_is_written_by_one_rename(tmp_path):
    place = open_location(str(tmp_path / "run"), {})
    place.write("steps/usage.json", b"{}")
    place.write("steps/usage.json", b"[]")
    written = {path.name: path.read_bytes() for path in (tmp_path / "run" / "steps").iterdir()}
    assert written == {"usage.json": b"[]"}
