"""Upload and download of one file; an interrupted transfer resumes with what is missing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minio.datatypes import Part
from minio.error import S3Error
from urllib3.exceptions import HTTPError

from espalier.records import ArtifactError, file_digest
from espalier.storage import minio_internals
from espalier.storage.layout import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from espalier.storage.requests import S3Requests

PART_BYTES = 16 << 20
"""A lost connection costs at most one part. S3's minimum is 5 MiB."""
_MAX_PARTS = 10_000


def part_size(num_bytes: int) -> int:
    """Bytes per part: 16 MiB, or more for a file that would have over 10,000 parts."""
    needed = -(-num_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-needed // (1 << 20)) << 20)


class FileSums(NamedTuple):
    """Sums of one file, all taken in one reading."""

    sha256: str
    """In hex."""
    num_bytes: int
    part_bytes: int
    part_md5s: tuple[bytes, ...]
    """MD5 of each part of an upload; an empty file has one empty part."""

    @classmethod
    def of(cls, path: Path) -> FileSums:
        """Read the file once."""
        size = part_size(path.stat().st_size)
        whole, parts, num_bytes = hashlib.sha256(), list[bytes](), 0
        with path.open("rb") as stream:
            for part in _parts(lambda: stream.read(size)):
                whole.update(part)
                parts.append(_md5(part))
                num_bytes += len(part)
        return cls(whole.hexdigest(), num_bytes, size, tuple(parts))

    @property
    def etag(self) -> str:
        """The ETag by S3's rule: MD5 of one part, or of the parts' MD5s with their number."""
        if len(self.part_md5s) == 1:
            return self.part_md5s[0].hex()
        return f"{_md5(b''.join(self.part_md5s)).hex()}-{len(self.part_md5s)}"


def upload(
    requests: S3Requests,
    path: Path,
    sums: FileSums,
    bucket: str,
    key: str,
) -> str | None:
    """Upload a file to s3://bucket/key, whatever is there.

    Every part has its MD5, which the server checks against what arrives, so that the object has
    the bytes that `sums` were taken of. Parts of a killed attempt are kept if their ETags match. A
    server that encrypts with its own keys returns other ETags: then all parts are sent again.

    Args:
        requests: of the server.
        path: of the file.
        sums: of the file.
        bucket: of the object.
        key: of the object.

    Returns:
        The object's ETag; None if another writer of the same content has completed or aborted the
        upload that both were sending, so that the object is to be looked up.

    Raises:
        ArtifactError: the file has changed since `sums` were taken.
        StorageError: the server refuses or is unreachable.
    """
    if len(sums.part_md5s) > 1:
        return _MultipartUpload(requests, bucket, key).send(path, sums)
    md5 = b"".join(sums.part_md5s)  # of the one part
    content = path.read_bytes()
    return requests.send(
        f"write s3://{bucket}/{key}",
        _checked(
            path,
            content,
            md5,
            lambda md5: minio_internals.put_object(requests.client, bucket, key, content, md5=md5),
        ),
    )


def _checked(
    path: Path, content: bytes, md5: bytes, put: Callable[[bytes], str]
) -> Callable[[], str]:
    """A request that sends `content` with its expected MD5.

    A body that was damaged on its way is sent again; a file that has changed never will be right.
    """

    def request() -> str:
        try:
            return put(md5)
        except S3Error as error:
            if error.code == "BadDigest" and _md5(content) != md5:
                raise _changed(path) from error
            raise

    return request


def _changed(path: Path) -> ArtifactError:
    return ArtifactError(
        f"{path}: changed while it was being published, and nothing was replaced. Let its writer "
        "finish, and run the same command again"
    )


class _MultipartUpload:
    """An upload of one object in parts."""

    def __init__(self, requests: S3Requests, bucket: str, key: str) -> None:
        self._requests, self._client = requests, requests.client
        self._bucket, self._key = bucket, key
        self._where = f"s3://{bucket}/{key}"

    def send(self, path: Path, sums: FileSums) -> str | None:
        """Send the missing parts, then complete the upload."""
        begun = self._begun()
        upload_id = begun[-1] if begun else self._begin()
        present = self._present(upload_id) if begun else {}
        parts: list[Part] = []
        for number, md5 in enumerate(sums.part_md5s, 1):
            etag = present.get(number)
            if etag != md5.hex():
                etag = self._send_part(path, sums, upload_id, number)
            if etag is None:
                return None
            parts.append(Part(number, etag))
        etag = self._complete(upload_id, parts)
        for left_over in begun[:-1]:
            self._requests.forget_upload(self._bucket, self._key, left_over)
        return etag

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
        """Part number -> ETag of the parts that the server has; none if the upload is gone."""
        etags: dict[int, str] = {}
        marker: str | None = None
        while True:
            page = self._requests.send_or_none(
                f"list parts of {self._where}",
                lambda marker=marker: minio_internals.list_parts(
                    self._client, self._bucket, self._key, upload_id, marker
                ),
            )
            if page is None:
                return etags
            etags |= page.etags
            marker = page.next_marker
            if marker is None:
                return etags

    def _send_part(self, path: Path, sums: FileSums, upload_id: str, number: int) -> str | None:
        with path.open("rb") as stream:
            stream.seek((number - 1) * sums.part_bytes)
            chunk = stream.read(sums.part_bytes)
        return self._requests.send_or_none(
            f"write part {number} of {self._where}",
            _checked(
                path,
                chunk,
                sums.part_md5s[number - 1],
                lambda md5: minio_internals.upload_part(
                    self._client, self._bucket, self._key, upload_id, number, chunk, md5=md5
                ),
            ),
        )

    def _complete(self, upload_id: str, parts: list[Part]) -> str | None:
        # if the first answer was lost, the retry finds no upload, and the object is looked up
        return self._requests.send_or_none(
            f"complete {self._where}",
            lambda: minio_internals.complete_upload(
                self._client, self._bucket, self._key, upload_id, parts
            ),
        )


def _parts(read: Callable[[], bytes]) -> Iterator[bytes]:
    """What `read` gives until it gives nothing; of an empty file one empty part."""
    part = read()
    yield part
    while part := read():
        yield part


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


_CHUNK_BYTES = 1 << 20
_PARTIAL_CONTENT = 206


def download(
    requests: S3Requests,
    bucket: str,
    key: str,
    path: Path,
    digest: str,
    *,
    num_bytes: int | None = None,
) -> bool:
    """Download the object to `path`; a complete file is kept.

    Args:
        requests: of the server.
        bucket: of the object.
        key: of the object.
        path: the file; while incomplete it has the suffix `PARTIAL_SUFFIX` and survives a kill.
        digest: SHA-256 of the whole file, hexadecimal.
        num_bytes: of the whole file, where known: an object that goes on after them is not read
            to its end.

    Returns:
        Whether there is such an object.

    Raises:
        ArtifactError: the bytes do not have this digest, after a second download as well.
        StorageError: the server refuses or is unreachable.
    """
    if path.exists() and file_digest(path) == digest:
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    receiver = _Receiver(requests, bucket, key, partial, num_bytes)
    resumed = partial.exists()
    found = receiver.receive()
    if found and receiver.digest != digest and resumed:
        # the earlier attempt may have read an object that was replaced since
        partial.unlink()
        receiver = _Receiver(requests, bucket, key, partial, num_bytes)
        found = receiver.receive()
    if not found:
        return False
    if receiver.digest != digest:
        partial.unlink()
        raise ArtifactError(
            f"s3://{bucket}/{key}: its bytes are not those that were published (truncated or "
            "edited). Publish the artifact again, or run the stage that makes it: that puts the "
            "file back"
        )
    partial.replace(path)
    return True


class _Receiver:
    """Appends an object to a partial file, over as many connections as it takes, and sums it."""

    def __init__(
        self, requests: S3Requests, bucket: str, key: str, partial: Path, num_bytes: int | None
    ) -> None:
        self._requests, self._bucket, self._key = requests, bucket, key
        self._partial, self._num_bytes = partial, num_bytes
        self._sum = hashlib.sha256()
        if partial.exists():
            with partial.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    self._sum.update(chunk)

    @property
    def digest(self) -> str:
        """SHA-256 of what is in the partial file."""
        return self._sum.hexdigest()

    def receive(self) -> bool:
        """Receive the rest; whether there is such an object."""
        what = f"read s3://{self._bucket}/{self._key}"
        while True:
            is_complete = self._requests.send_or_none(what, self._receive)
            if is_complete is None:
                return False
            if is_complete:
                return True

    def _receive(self) -> bool:
        """Append what the connection delivers; return whether the object is complete.

        A connection that broke after some bytes is no error yet: the next one continues.
        """
        with self._partial.open("ab") as stream:
            offset = stream.tell()
            try:
                response = self._requests.client.get_object(self._bucket, self._key, offset=offset)
            except S3Error as error:
                if error.code == "InvalidRange":  # the partial file is complete already
                    return True
                raise
            try:
                if offset and response.status != _PARTIAL_CONTENT:
                    stream.truncate(0)  # the server ignores ranges and sends the whole object
                    self._sum = hashlib.sha256()
                for chunk in response.stream(_CHUNK_BYTES):
                    stream.write(chunk)
                    self._sum.update(chunk)
                    if self._num_bytes is not None and stream.tell() > self._num_bytes:
                        return True
            except HTTPError:
                if stream.tell() > offset:
                    return False
                raise
            finally:
                response.close()
                response.release_conn()
        return True
