"""Upload and download of one file; an interrupted transfer resumes with what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minio.datatypes import Part
from minio.error import S3Error
from urllib3.exceptions import HTTPError

from espalier.records import ArtifactError, StorageError, file_digest
from espalier.storage import minio_internals

if TYPE_CHECKING:
    from espalier.storage.requests import S3Requests

PART_BYTES = 16 << 20
"""A lost connection costs at most one part. S3's minimum is 5 MiB."""
_MAX_PARTS = 10_000


def part_size(num_bytes: int) -> int:
    """Bytes per part: 16 MiB, or more for a file that would have over 10,000 parts."""
    needed = -(-num_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-needed // (1 << 20)) << 20)


def upload(requests: S3Requests, path: Path, bucket: str, key: str) -> None:
    """Upload a file to s3://bucket/key; nothing is sent if the object is there already.

    Every part has its MD5, which the server checks; parts of a killed attempt are kept if their
    ETags match this file. A server that encrypts with its own keys returns other ETags: then all
    parts are sent again, which is slower but correct.

    Raises:
        StorageError: the server refuses, is unreachable, or stored another number of bytes.
    """
    where = f"s3://{bucket}/{key}"
    digests = [hashlib.md5(chunk, usedforsecurity=False) for chunk in _chunks(path)]
    etag = _expected_etag([digest.digest() for digest in digests])
    client = requests.client
    found = requests.send_or_none(f"look up {where}", lambda: client.stat_object(bucket, key))
    if found is not None and found.etag == etag:
        return
    if len(digests) == 1:
        content = path.read_bytes()
        requests.send(
            f"write {where}", lambda: minio_internals.put_object(client, bucket, key, content)
        )
    else:
        _Parts(requests, bucket, key).send(path, [digest.hexdigest() for digest in digests])
    stored = requests.send(f"look up {where}", lambda: client.stat_object(bucket, key))
    if stored.size != path.stat().st_size:
        raise StorageError(
            f"{where}: {path.stat().st_size} bytes were sent and {stored.size} are there. Another "
            "writer may be at work: let one finish, and run the same command again"
        )


class _Parts:
    """A multipart upload of one object."""

    def __init__(self, requests: S3Requests, bucket: str, key: str) -> None:
        self._requests, self._client = requests, requests.client
        self._bucket, self._key = bucket, key
        self._where = f"s3://{bucket}/{key}"

    def send(self, path: Path, digests: Sequence[str]) -> None:
        """Send the missing parts, then complete the upload."""
        begun = self._begun()
        upload_id = begun[-1] if begun else self._begin()
        present = self._present(upload_id) if begun else {}
        parts: list[Part] = []
        for number, (chunk, digest) in enumerate(zip(_chunks(path), digests, strict=True), 1):
            if present.get(number) != digest:
                present[number] = self._send_part(upload_id, number, chunk)
            parts.append(Part(number, present[number]))
        self._complete(upload_id, parts)
        for left_over in begun[:-1]:
            self._requests.send_or_none(
                f"forget an upload of {self._where}",
                lambda left_over=left_over: minio_internals.abort_upload(
                    self._client, self._bucket, self._key, left_over
                ),
            )

    def _begun(self) -> list[str]:
        return self._requests.send(
            f"list uploads of {self._where}",
            lambda: minio_internals.list_uploads(self._client, self._bucket, self._key),
        )

    def _begin(self) -> str:
        return self._requests.send(
            f"begin an upload of {self._where}",
            lambda: minio_internals.begin_upload(self._client, self._bucket, self._key),
        )

    def _present(self, upload_id: str) -> dict[int, str]:
        """Part number -> ETag of the parts that the server has."""
        etags: dict[int, str] = {}
        marker: str | None = None
        while True:
            page = self._requests.send(
                f"list parts of {self._where}",
                lambda marker=marker: minio_internals.list_parts(
                    self._client, self._bucket, self._key, upload_id, marker
                ),
            )
            etags |= page.etags
            marker = page.next_marker
            if marker is None:
                return etags

    def _send_part(self, upload_id: str, number: int, chunk: bytes) -> str:
        return self._requests.send(
            f"write part {number} of {self._where}",
            lambda: minio_internals.upload_part(
                self._client, self._bucket, self._key, upload_id, number, chunk
            ),
        )

    def _complete(self, upload_id: str, parts: list[Part]) -> None:
        # if the first answer was lost, the retry finds no upload: `upload` then checks the object
        self._requests.send_or_none(
            f"complete {self._where}",
            lambda: minio_internals.complete_upload(
                self._client, self._bucket, self._key, upload_id, parts
            ),
        )


def _chunks(path: Path) -> Iterator[bytes]:
    """The file in parts; an empty file has one empty part."""
    size = part_size(path.stat().st_size)
    with path.open("rb") as stream:
        chunk = stream.read(size)
        yield chunk
        while chunk := stream.read(size):
            yield chunk


def _expected_etag(digests: Sequence[bytes]) -> str:
    """The ETag by S3's rule: the MD5 of one part, or MD5 of the parts' MD5s with their number."""
    if len(digests) == 1:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


if TYPE_CHECKING:
    from espalier.storage.requests import S3Requests

PARTIAL_SUFFIX = ".espalier-partial"
"""Suffix of a partial download; no file of an artifact has it."""
_CHUNK_BYTES = 1 << 20
_PARTIAL_CONTENT = 206


def download(requests: S3Requests, bucket: str, key: str, path: Path, digest: str) -> None:
    """Download the object to `path`; a complete file is kept.

    Args:
        requests: of the server.
        bucket: of the object.
        key: of the object.
        path: the file; while incomplete it has the suffix `PARTIAL_SUFFIX` and survives a kill.
        digest: SHA-256 of the whole file, hexadecimal.

    Raises:
        ArtifactError: the bytes do not have this digest, after a second download as well.
        StorageError: the server refuses or is unreachable.
    """
    if path.exists() and file_digest(path) == digest:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    resumed = partial.exists()
    _receive_all(requests, bucket, key, partial)
    if file_digest(partial) != digest and resumed:
        # the earlier attempt may have read an object that was replaced since
        partial.unlink()
        _receive_all(requests, bucket, key, partial)
    if file_digest(partial) != digest:
        partial.unlink()
        raise ArtifactError(
            f"s3://{bucket}/{key}: its bytes are not those that were published (truncated or "
            "edited). Delete the artifact and run the stage that makes it again"
        )
    partial.replace(path)


def _receive_all(requests: S3Requests, bucket: str, key: str, partial: Path) -> None:
    what = f"read s3://{bucket}/{key}"
    while not requests.send(what, lambda: _receive(requests, bucket, key, partial)):
        pass


def _receive(requests: S3Requests, bucket: str, key: str, partial: Path) -> bool:
    """Append what the connection delivers; return whether the object is complete.

    A connection that broke after some bytes is no error yet: the next one continues.
    """
    with partial.open("ab") as stream:
        offset = stream.tell()
        try:
            response = requests.client.get_object(bucket, key, offset=offset)
        except S3Error as error:
            if error.code == "InvalidRange":  # the partial file is complete already
                return True
            raise
        try:
            if offset and response.status != _PARTIAL_CONTENT:
                stream.truncate(0)  # the server ignores ranges and sends the whole object
            for chunk in response.stream(_CHUNK_BYTES):
                stream.write(chunk)
        except HTTPError:
            if stream.tell() > offset:
                return False
            raise
        finally:
            response.close()
            response.release_conn()
    return True
