"""What publishing relies on, asked of the stand-in and, where there is one, of a real server."""

import os
from datetime import UTC, datetime, timedelta

import pytest
from minio.datatypes import Part

from espalier.storage import minio_internals
from espalier.storage.layout import COLLECTING
from espalier.storage.minio_internals import IF_ABSENT, if_unchanged
from espalier.storage.objects import ArtifactObjects
from espalier.storage.requests import S3Requests
from espalier.storage.settings import s3_settings
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
    client = there.requests.client
    return there.requests.send_if(
        "write it",
        lambda: minio_internals.put_object(
            client, there.bucket, there.key(name), content, condition=condition
        ),
    )


def content(there, name):
    response = there.requests.client.get_object(there.bucket, there.key(name))
    try:
        return response.read()
    finally:
        response.close()
        response.release_conn()


def test_an_object_is_made_only_where_none_is(there):
    assert put(there, "one", b"first", IF_ABSENT)
    assert put(there, "one", b"second", IF_ABSENT) is None
    assert content(there, "one") == b"first"


def test_an_object_is_replaced_only_if_unchanged(there):
    etag = put(there, "one", b"first")
    assert put(there, "one", b"second", if_unchanged("0" * 32)) is None
    second = put(there, "one", b"second", if_unchanged(etag))
    assert second not in (None, etag)
    assert put(there, "one", b"third", if_unchanged(etag)) is None
    assert content(there, "one") == b"second"


def test_nothing_is_replaced_where_nothing_is(there):
    assert put(there, "one", b"first", if_unchanged("0" * 32)) is None
    assert there.listed() == {}


def test_equal_bytes_have_equal_etags(there):
    first = put(there, "one", b"same")
    assert put(there, "one", b"same", if_unchanged(first)) == first
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
        minio_internals.put_object(
            there.requests.client, there.bucket, there.key("one"), b"1", md5=b"0" * 16
        )
    assert caught.value.code == "BadDigest"
    assert there.listed() == {}


def upload(there, name, parts):
    client, key = there.requests.client, there.key(name)
    upload_id = minio_internals.begin_upload(client, there.bucket, key)
    return upload_id, [
        Part(n, minio_internals.upload_part(client, there.bucket, key, upload_id, n, part))
        for n, part in enumerate(parts, 1)
    ]


def test_an_upload_in_parts_appears_when_it_is_complete(there):
    upload_id, parts = upload(there, "one", PARTS)
    client, key = there.requests.client, there.key("one")
    assert minio_internals.list_uploads(client, there.bucket, key) == [upload_id]
    assert there.listed() == {}
    etag = minio_internals.complete_upload(client, there.bucket, key, upload_id, parts)
    assert there.listed()["one"][:2] == (len(PARTS[0]) + 1, etag)
    assert etag.endswith("-2")
    assert minio_internals.list_uploads(client, there.bucket, key) == []


def test_an_upload_that_another_has_ended_is_gone(there):
    client, key = there.requests.client, there.key("one")
    upload_id, parts = upload(there, "one", PARTS)
    minio_internals.abort_upload(client, there.bucket, key, upload_id)

    def gone(request):
        return there.requests.send_or_none("ask", request)

    assert gone(
        lambda: minio_internals.upload_part(client, there.bucket, key, upload_id, 1, b"1")
    ) is None  # fmt: skip
    assert gone(
        lambda: minio_internals.complete_upload(client, there.bucket, key, upload_id, parts)
    ) is None  # fmt: skip
    listed = gone(lambda: minio_internals.list_parts(client, there.bucket, key, upload_id, None))
    assert listed is None
    assert there.listed() == {}
