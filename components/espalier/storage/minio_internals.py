"""Private requests of minio-py, called from this module only.

minio-py cannot resume a multipart upload, and its public `put_object` sends no Content-MD5. Each
function here is one request, so that only what failed is retried. The contract test
tests/unit/storage/test_minio_internals.py shows what a new version of minio-py has changed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minio import Minio
    from minio.datatypes import Part
    from minio.error import InvalidResponseError


class PartsPage(NamedTuple):
    """One page of an upload's parts."""

    etags: dict[int, str]
    """Part number, from 1 -> ETag."""
    next_marker: str | None
    """Marker of the next page; None on the last one."""


def put_object(client: Minio, bucket: str, key: str, content: bytes) -> None:
    """Write an object in one request; the server checks its MD5."""
    client._put_object(bucket, key, content, _md5_header(content))


def list_uploads(client: Minio, bucket: str, key: str) -> list[str]:
    """Ids of the incomplete uploads of one object, the oldest first."""
    listed = client._list_multipart_uploads(bucket, prefix=key)
    begun = [found for found in listed.uploads if found.object_name == key]
    begun.sort(key=lambda found: str(found.initiated_time))
    return [found.upload_id for found in begun if found.upload_id]


def begin_upload(client: Minio, bucket: str, key: str) -> str:
    """Begin an upload in parts and return its id."""
    return client._create_multipart_upload(bucket, key, {})


def list_parts(
    client: Minio, bucket: str, key: str, upload_id: str, marker: str | None
) -> PartsPage:
    """The parts that the server has, from `marker` on."""
    listed = client._list_parts(bucket, key, upload_id, part_number_marker=marker)
    etags = {part.part_number: part.etag for part in listed.parts}
    return PartsPage(etags, listed.next_part_number_marker if listed.is_truncated else None)


def upload_part(
    client: Minio, bucket: str, key: str, upload_id: str, number: int, content: bytes
) -> str:
    """Write one part and return its ETag; the server checks its MD5."""
    return client._upload_part(bucket, key, content, _md5_header(content), upload_id, number)


def complete_upload(
    client: Minio, bucket: str, key: str, upload_id: str, parts: Sequence[Part]
) -> None:
    """Complete an upload: the parts become the object."""
    client._complete_multipart_upload(bucket, key, upload_id, list(parts))


def abort_upload(client: Minio, bucket: str, key: str, upload_id: str) -> None:
    """Delete an incomplete upload and its parts."""
    client._abort_multipart_upload(bucket, key, upload_id)


def response_status(error: InvalidResponseError) -> int:
    """HTTP status of an answer that is not S3's."""
    return error._code


def _md5_header(content: bytes) -> dict[str, str | list[str] | tuple[str]]:
    digest = hashlib.md5(content, usedforsecurity=False).digest()
    return {"Content-MD5": base64.b64encode(digest).decode()}
