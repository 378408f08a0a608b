import importlib.metadata
import inspect

import pytest
from minio import Minio
from minio.datatypes import Part
from minio.error import InvalidResponseError

from espalier.storage import minio_internals
from espalier.storage.requests import S3Requests
from tests.factories.storage import settings
from tests.fakes.s3_stand_in import BUCKET, MIN_PART_BYTES

VERSION = importlib.metadata.version("minio")
CALLS = {
    "_put_object": (("bucket", "key", b"", {}), {}),
    "_list_multipart_uploads": (("bucket",), {"prefix": "key"}),
    "_create_multipart_upload": (("bucket", "key", {}), {}),
    "_list_parts": (("bucket", "key", "id"), {"part_number_marker": None}),
    "_upload_part": (("bucket", "key", b"", {}, "id", 1), {}),
    "_complete_multipart_upload": (("bucket", "key", "id", []), {}),
    "_abort_multipart_upload": (("bucket", "key", "id"), {}),
}

pytestmark = pytest.mark.contract


@pytest.fixture
def client(s3):
    return S3Requests(settings(s3)).client


@pytest.mark.parametrize("name", CALLS)
def test_minio_has_the_private_calls_that_are_used(name):
    remedy = f"minio {VERSION} changed Minio.{name}: adapt espalier/storage/minio_internals.py"
    method = getattr(Minio, name, None)
    assert method is not None, remedy
    positional, named = CALLS[name]
    try:
        inspect.signature(method).bind(None, *positional, **named)
    except TypeError as error:
        pytest.fail(f"{remedy} ({error})")


def test_every_private_call_is_in_the_table():
    source = inspect.getsource(minio_internals)
    used = {word.split("(")[0] for word in source.split("client.")[1:]}
    assert used == CALLS.keys()


def test_an_object_is_put_with_its_sum(client, s3):
    minio_internals.put_object(client, BUCKET, "w", b"content")
    assert s3.objects["w"][0] == b"content"


def test_an_upload_is_resumed_from_its_parts_and_completed(client, s3):
    first, second = b"1" * MIN_PART_BYTES, b"2"
    upload_id = minio_internals.begin_upload(client, BUCKET, "w")
    etag = minio_internals.upload_part(client, BUCKET, "w", upload_id, 1, first)
    assert minio_internals.list_uploads(client, BUCKET, "w") == [upload_id]
    page = minio_internals.list_parts(client, BUCKET, "w", upload_id, None)
    assert page == ({1: etag}, None)
    last = minio_internals.upload_part(client, BUCKET, "w", upload_id, 2, second)
    minio_internals.complete_upload(client, BUCKET, "w", upload_id, [Part(1, etag), Part(2, last)])
    assert s3.objects["w"][0] == first + second


def test_an_aborted_upload_is_forgotten(client, s3):
    upload_id = minio_internals.begin_upload(client, BUCKET, "w")
    minio_internals.abort_upload(client, BUCKET, "w", upload_id)
    assert minio_internals.list_uploads(client, BUCKET, "w") == []


def test_an_answer_that_is_not_s3s_has_a_status():
    error = InvalidResponseError(503, "text/html", "<html>")
    assert minio_internals.response_status(error) == 503
