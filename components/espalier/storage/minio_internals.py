"""Private requests of minio-py, called from this module only.

minio-py cannot resume a multipart upload, and its public `put_object` sends neither Content-MD5
nor conditions. Each function here is one request, so that only what failed is retried. The contract
test tests/unit/storage/test_minio_internals.py shows what a new version of minio-py has changed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
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


class Upload(NamedTuple):
    """An incomplete upload."""

    key: str
    upload_id: str
    begun: datetime | None


class UploadsPage(NamedTuple):
    """One page of a bucket's incomplete uploads."""

    uploads: list[Upload]
    next_key: str | None
    """Marker of the next page; None on the last one."""


IF_ABSENT: Mapping[str, str] = {"If-None-Match": "*"}
"""Write only if there is no such object."""


def if_unchanged(etag: str) -> Mapping[str, str]:
    """Write only if the object still has this ETag."""
    return {"If-Match": f'"{etag}"'}


def put_object(
    client: Minio,
    bucket: str,
    key: str,
    content: bytes,
    *,
    md5: bytes | None = None,
    condition: Mapping[str, str] | None = None,
) -> str:
    """Write an object in one request and return its ETag.

    Args:
        client: of the server.
        bucket: of the object.
        key: of the object.
        content: of the object.
        md5: MD5 that the server compares with what arrives; None means that of `content`.
        condition: header without which nothing is written: `IF_ABSENT`, or `if_unchanged`.
    """
    headers = _md5_header(content, md5) | dict(condition or {})
    return client._put_object(bucket, key, content, headers).etag or ""


def list_uploads(client: Minio, bucket: str, key: str) -> list[str]:
    """Ids of the incomplete uploads of one object, the oldest first."""
    listed = client._list_multipart_uploads(bucket, prefix=key)
    begun = [found for found in listed.uploads if found.object_name == key]
    begun.sort(key=lambda found: str(found.initiated_time))
    return [found.upload_id for found in begun if found.upload_id]


def list_all_uploads(client: Minio, bucket: str, prefix: str, after: str | None) -> UploadsPage:
    """Incomplete uploads of all objects below a prefix, from the key `after` on.

    MinIO answers this for whole keys only and forgets uploads of over a day by itself.
    """
    listed = client._list_multipart_uploads(bucket, prefix=prefix, key_marker=after)
    uploads = [
        Upload(found.object_name, found.upload_id, found.initiated_time)
        for found in listed.uploads
        if found.object_name and found.upload_id
    ]
    return UploadsPage(uploads, listed.next_key_marker if listed.is_truncated else None)


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


def upload_part(  # noqa: PLR0913 (a part is named by five things)
    client: Minio,
    bucket: str,
    key: str,
    upload_id: str,
    number: int,
    content: bytes,
    *,
    md5: bytes | None = None,
) -> str:
    """Write one part and return its ETag; the server compares what arrives with `md5`."""
    headers = _md5_header(content, md5)
    return client._upload_part(bucket, key, content, headers, upload_id, number)


def complete_upload(
    client: Minio, bucket: str, key: str, upload_id: str, parts: Sequence[Part]
) -> str:
    """Complete an upload: the parts become the object, whose ETag is returned."""
    return client._complete_multipart_upload(bucket, key, upload_id, list(parts)).etag or ""


def abort_upload(client: Minio, bucket: str, key: str, upload_id: str) -> None:
    """Delete an incomplete upload and its parts."""
    client._abort_multipart_upload(bucket, key, upload_id)


def response_status(error: InvalidResponseError) -> int:
    """HTTP status of an answer that is not S3's."""
    return error._code


def _md5_header(content: bytes, md5: bytes | None) -> dict[str, str | list[str] | tuple[str]]:
    digest = hashlib.md5(content, usedforsecurity=False).digest() if md5 is None else md5
    return {"Content-MD5": base64.b64encode(digest).decode()}
