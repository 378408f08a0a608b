"""Upload and download of one file; an interrupted transfer resumes with the missing parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import fromstring
from xml.sax.saxutils import escape

from minio.datatypes import CompleteMultipartUploadResult, ListPartsResult
from minio.error import S3Error
from urllib3.exceptions import HTTPError

from espalier.records import ArtifactError, file_digest
from espalier.storage.layout import PARTIAL_SUFFIX
from espalier.storage.requests import S3Requests, etag_of

PART_BYTES = 16 << 20
"""Size of a part: what a lost connection costs at most. S3's minimum is 5 MiB."""
_MAX_PARTS = 10_000


def part_size(num_bytes: int) -> int:
    """Bytes per part: 16 MiB, or more for a file that would need over 10,000 parts."""
    needed = -(-num_bytes // _MAX_PARTS)
    return max(PART_BYTES, -(-needed // (1 << 20)) << 20)


class FileSums(NamedTuple):
    """Digests of one file, computed in one reading."""

    sha256: str
    """SHA-256 of the file, in hex."""
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
            part = stream.read(size)
            while part or not parts:  # an empty file is one empty part
                whole.update(part)
                parts.append(_md5(part))
                num_bytes += len(part)
                part = stream.read(size)
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
    """Upload a file to s3://bucket/key, replacing a present object.

    Parts of a killed attempt are kept if their ETags match. A server that encrypts with its own
    keys returns other ETags, so all parts are sent again.

    Args:
        requests: client of the server.
        path: the file.
        sums: digests of the file.
        bucket: bucket of the object.
        key: key of the object.

    Returns:
        The object's ETag; None if another writer of the same content completed or aborted the
        upload that both were sending, so that the caller has to look the object up.

    Raises:
        ArtifactError: the file has changed since `sums` were taken.
        StorageError: the server refuses or is unreachable.
    """
    if len(sums.part_md5s) == 1:
        return requests.put(bucket, key, _part(path, sums, 1))
    parts = MultipartUpload(requests, bucket, key)
    begun = sorted(
        (found.begun, found.upload_id)
        for found in requests.uploads_below(bucket, key)
        if found.key == key
    )
    left_over = [upload_id for _, upload_id in begun]
    upload_id = left_over.pop() if begun else parts.begin()
    present = parts.present(upload_id) if begun else {}
    etags: list[str] = []
    for number, md5 in enumerate(sums.part_md5s, 1):
        etag = present.get(number)
        if etag != md5.hex():
            etag = parts.put(upload_id, number, _part(path, sums, number))
        if etag is None:
            return None
        etags.append(etag)
    etag = parts.complete(upload_id, etags)
    for each in left_over:
        requests.forget_upload(bucket, key, each)
    return etag


def _part(path: Path, sums: FileSums, number: int) -> bytes:
    """Content of one part of the file.

    Raises:
        ArtifactError: the file has changed since its digests were computed.
    """
    with path.open("rb") as stream:
        stream.seek((number - 1) * sums.part_bytes)
        content = stream.read(sums.part_bytes)
    if _md5(content) != sums.part_md5s[number - 1]:
        raise ArtifactError(
            f"{path}: changed while it was published, so nothing was replaced. Let its writer "
            "finish, and run the same command again"
        )
    return content


class MultipartUpload:
    """Requests for uploads of one object in parts.

    All methods raise StorageError if the server refuses or is unreachable.
    """

    def __init__(self, requests: S3Requests, bucket: str, key: str) -> None:
        self._requests, self._bucket, self._key = requests, bucket, key
        self._where = f"s3://{bucket}/{key}"

    def begin(self) -> str:
        """Begin an upload and return its id."""
        return self._requests.send(f"begin an upload of {self._where}", self._begun)

    def present(self, upload_id: str) -> dict[int, str]:
        """ETags of the parts that the server has, by part number; none if the upload is gone."""
        etags: dict[int, str] = {}
        query = {"uploadId": upload_id}
        while True:
            page = self._requests.send_or_none(
                f"list parts of {self._where}",
                lambda: ListPartsResult(
                    self._requests.ask("GET", self._bucket, self._key, query=query)
                ),
            )
            if page is None:
                return {}
            etags |= {part.part_number: part.etag for part in page.parts}
            if not (page.is_truncated and page.next_part_number_marker):
                return etags
            query["part-number-marker"] = page.next_part_number_marker

    def put(self, upload_id: str, number: int, content: bytes) -> str | None:
        """Write one part and return its ETag; None if the upload is gone."""
        query = {"partNumber": str(number), "uploadId": upload_id}
        return self._requests.send_or_none(
            f"write part {number} of {self._where}",
            lambda: etag_of(
                self._requests.ask("PUT", self._bucket, self._key, query=query, body=content)
            ),
        )

    def complete(self, upload_id: str, etags: Sequence[str]) -> str | None:
        """Join all parts, in order, into the object, and return its ETag.

        None if the upload is gone, for example after a lost answer.
        """
        listed = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        query = {"uploadId": upload_id}

        def completed() -> str:
            response = self._requests.ask("POST", self._bucket, self._key, query=query, body=body)
            return CompleteMultipartUploadResult(response).etag or ""

        return self._requests.send_or_none(f"complete {self._where}", completed)

    def _begun(self) -> str:
        response = self._requests.ask("POST", self._bucket, self._key, query={"uploads": ""})
        return fromstring(response.data).findtext("{*}UploadId", "")


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


_CHUNK_BYTES = 1 << 20
PARTIAL_CONTENT = 206
"""Status of an answer with a part of an object."""


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
        requests: client of the server.
        bucket: bucket of the object.
        key: key of the object.
        path: the file; while incomplete it has the suffix `PARTIAL_SUFFIX` and survives a kill.
        digest: SHA-256 of the whole file, hexadecimal.
        num_bytes: size of the whole file, if known: a longer object is not read to its end.

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
            "edited). To restore the file, publish the artifact again or run the stage that "
            "makes it"
        )
    partial.replace(path)
    return True


class _Receiver:
    """Appends an object to a partial file, over several connections if needed, and hashes it."""

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
        """SHA-256 of the partial file so far, in hex."""
        return self._sum.hexdigest()

    def receive(self) -> bool:
        """Receive the rest; False if there is no such object."""
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
                if offset and response.status != PARTIAL_CONTENT:
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
