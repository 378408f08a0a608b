"""What publishing relies on, asked of the stand-in and, where there is one, of a real server."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from espalier.storage.layout import COLLECTING
from espalier.storage.objects import ArtifactObjects
from espalier.storage.requests import S3Requests, while_etag
from espalier.storage.settings import s3_settings
from espalier.storage.transfer import MultipartUpload
from tests.factories.storage import minio_uri, settings
from tests.fakes.s3_stand_in import BUCKET, MIN_PART_BYTES, InMemoryPool, S3StandIn

pytestmark = pytest.mark.contract
PARTS = b"1" * MIN_PART_BYTES, b"2"


@pytest.fixture(params=["stand-in", "in memory", "minio"])
def there(request):
    """An empty prefix."""
    if request.param == "stand-in":
        requests = S3Requests(settings(request.getfixturevalue("s3")))
    elif request.param == "in memory":
        stand_in = S3StandIn()
        requests = S3Requests(settings(stand_in), InMemoryPool(stand_in))
    else:
        bucket, _, prefix = minio_uri().removeprefix("s3://").partition("/")
        return ArtifactObjects(S3Requests(s3_settings(os.environ)), bucket, prefix)
    return ArtifactObjects(requests, BUCKET, "a prefix/of+ours")


def put(there, name, content, condition=None):
    """The ETag; None where the condition does not hold."""
    return there.requests.put(there.bucket, there.key(name), content, condition)


def content(there, name):
    response = there.requests.client.get_object(there.bucket, there.key(name))
    try:
        return response.read()
    finally:
        response.close()
        response.release_conn()


def test_an_object_is_written_only_where_its_condition_holds(there):
    assert put(there, "one", b"first", while_etag("0" * 32)) is None
    assert there.listed() == {}
    etag = put(there, "one", b"first", while_etag(None))
    for other in (while_etag(None), while_etag("0" * 32)):
        assert put(there, "one", b"second", other) is None
    assert content(there, "one") == b"first"
    second = put(there, "one", b"second", while_etag(etag))
    assert second not in (None, etag)
    assert put(there, "one", b"third", while_etag(etag)) is None
    assert content(there, "one") == b"second"


def test_equal_bytes_have_equal_etags(there):
    first = put(there, "one", b"same")
    assert put(there, "one", b"same", while_etag(first)) == first
    assert there.listed()["one"].etag == first


def test_a_listing_shows_sizes_sums_and_times_in_order(there):
    names = [COLLECTING, "manifest.json", "sha256/0", "sha256/1", "z \u00e9+&"]
    for name in reversed(names):
        put(there, name, name.encode())
    listed = there.listed()
    assert list(listed) == names, "the collector's mark has to come before all contents"
    assert [found.num_bytes for found in listed.values()] == [len(name.encode()) for name in names]
    since = datetime.now(UTC) - listed[COLLECTING].modified
    assert timedelta(minutes=-1) < since < timedelta(minutes=1)


def test_a_listing_shows_what_was_written_and_deleted_before(there):
    for number in range(20):
        put(there, "one", f"{number}".encode())
        assert there.listed()["one"].num_bytes == len(f"{number}")
        there.requests.client.remove_object(there.bucket, there.key("one"))
        assert there.listed() == {}


def test_a_body_with_another_sum_is_refused(there):
    from minio.error import S3Error

    with pytest.raises(S3Error) as caught:
        there.requests.ask(
            "PUT", there.bucket, there.key("one"), body=b"1",
            headers={"Content-MD5": "A" * 22 + "=="},
        )  # fmt: skip
    assert caught.value.code == "BadDigest"
    assert there.listed() == {}


def upload(there, name, parts):
    requests = MultipartUpload(there.requests, there.bucket, there.key(name))
    upload_id = requests.begin()
    etags = [requests.put(upload_id, n, part) for n, part in enumerate(parts, 1)]
    return requests, upload_id, etags


def begun(there):
    return [
        found.upload_id for found in there.requests.uploads_below(there.bucket, there.key("one"))
    ]


def test_an_upload_in_parts_appears_when_it_is_complete(there):
    requests, upload_id, etags = upload(there, "one", PARTS)
    assert begun(there) == [upload_id]
    assert requests.present(upload_id) == dict(enumerate(etags, 1))
    assert there.listed() == {}
    etag = requests.complete(upload_id, etags)
    assert there.listed()["one"][:2] == (len(PARTS[0]) + 1, etag)
    assert etag.endswith("-2")
    assert begun(there) == []


def test_an_upload_that_another_has_ended_is_gone(there):
    requests, upload_id, etags = upload(there, "one", PARTS)
    there.requests.forget_upload(there.bucket, there.key("one"), upload_id)
    assert requests.put(upload_id, 1, b"1") is None
    assert requests.complete(upload_id, etags) is None
    assert requests.present(upload_id) == {}
    assert there.listed() == {}
