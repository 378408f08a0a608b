"""One file into one object: in parts where it is large, and only the parts that are missing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minio.datatypes import Part

from espalier.records import StorageError
from espalier.storage import minio_internals

if TYPE_CHECKING:
    from espalier.storage.requests import S3Requests

PART_BYTES = 16 << 20
"""A lost connection costs at most one part; S3 takes at least 5 MiB each."""
_MAX_PARTS = 10_000


def part_size(num_bytes: int) -> int:
    """Bytes of each part of a file: 16 MiB, or more where that would make too many parts."""
    needed = -(-num_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-needed // (1 << 20)) << 20)


def upload(requests: S3Requests, path: Path, bucket: str, key: str) -> None:
    """Make the object s3://bucket/key of the file; nothing is sent where it is there already.

    Every part travels with its MD5, which the server checks; parts of a killed attempt are kept
    where their ETags are those of this file. A server that encrypts with keys of its own gives
    other ETags: it is sent everything again, which is slower and no less right.

    Raises:
        StorageError: the server refuses, is away, or keeps another number of bytes than was sent.
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
        """Send what is missing, then make the object of all of it."""
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
        """ETags of the parts that are there, by number."""
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
        # an answer that got lost makes the repetition meet no upload: the object is looked at next
        self._requests.send_or_none(
            f"complete {self._where}",
            lambda: minio_internals.complete_upload(
                self._client, self._bucket, self._key, upload_id, parts
            ),
        )


def _chunks(path: Path) -> Iterator[bytes]:
    """The file in parts; an empty file is one empty part."""
    size = part_size(path.stat().st_size)
    with path.open("rb") as stream:
        chunk = stream.read(size)
        yield chunk
        while chunk := stream.read(size):
            yield chunk


def _expected_etag(digests: Sequence[bytes]) -> str:
    """What S3 calls the object: the MD5 of one part, or of the parts' MD5s and their number."""
    if len(digests) == 1:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"
