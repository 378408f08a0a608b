"""The objects of one artifact in S3, for its readers, its writers and the garbage collector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from urllib3.exceptions import ProtocolError

from espalier.records import MANIFEST_NAME
from espalier.storage.layout import MAX_MANIFEST_BYTES
from espalier.storage.requests import TRANSFERS, S3Requests, etag_of, while_etag
from espalier.storage.transfer import PARTIAL_CONTENT, FileSums, download, upload


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Current time and sleep, as functions that a test replaces."""

    now: Callable[[], datetime] = _utc_now
    """Current time in UTC. S3 refuses requests of a clock more than 15 minutes off."""
    sleep: Callable[[float], None] = time.sleep


class StoredManifest(NamedTuple):
    """A small object's bytes, and the ETag that a conditional write compares."""

    content: bytes
    etag: str


class StoredObject(NamedTuple):
    """An object's entry in a listing."""

    num_bytes: int
    etag: str
    modified: datetime


class ArtifactObjects:
    """The objects below s3://bucket/prefix/.

    All methods raise StorageError if the server refuses or is unreachable.
    """

    def __init__(self, requests: S3Requests, bucket: str, prefix: str) -> None:
        self.requests, self.bucket, self.prefix = requests, bucket, prefix
        self.uri = f"s3://{bucket}/{prefix}"

    def key(self, name: str) -> str:
        """Key of the object with this name below the prefix."""
        return f"{self.prefix}/{name}"

    def listed(self) -> dict[str, StoredObject]:
        """Every object by its name below the prefix."""
        below = f"{self.prefix}/"
        found = listed_below(self.requests, self.bucket, below)
        return {key.removeprefix(below): stored for key, stored in found.items()}

    def read_manifest(self) -> StoredManifest | None:
        """The manifest; None if there is none.

        An object that is too long for a manifest is cut one byte after `MAX_MANIFEST_BYTES`.
        """
        return self.read_small(MANIFEST_NAME, MAX_MANIFEST_BYTES)

    def read_small(self, name: str, most: int) -> StoredManifest | None:
        """An object's bytes, cut one byte after `most`; None if there is none."""
        key = self.key(name)

        def received() -> StoredManifest:
            response = self.requests.client.get_object(self.bucket, key)
            try:
                return StoredManifest(response.read(most + 1), etag_of(response))
            finally:
                response.close()
                response.release_conn()

        return self.requests.send_or_none(f"read s3://{self.bucket}/{key}", received)

    def write_if(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Write a small object if the present one has this ETag; for None, if none is present.

        Returns:
            The new ETag; None if the condition did not hold or the answer was lost, so that the
            caller has to read the object.
        """
        return self.requests.put(self.bucket, self.key(name), content, while_etag(etag))

    def fetch(self, name: str, path: Path, digest: str, *, num_bytes: int | None = None) -> bool:
        """Download an object of known SHA-256 with `transfer.download`; False if there is none.

        Raises:
            ArtifactError: its bytes have another digest.
        """
        key = self.key(name)
        return download(self.requests, self.bucket, key, path, digest, num_bytes=num_bytes)

    def read_range(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end` of an object, at least one; None if there is no such object."""
        key = self.key(name)

        def received() -> bytes:
            response = self.requests.client.get_object(
                self.bucket, key, offset=start, length=end - start
            )
            try:
                # a server that ignores ranges sends the whole object
                skipped = 0 if response.status == PARTIAL_CONTENT else start
                content = response.read(skipped + end - start)[skipped:]
            finally:
                response.close()
                response.release_conn()
            if len(content) != end - start:
                raise ProtocolError(f"{len(content)} of {end - start} bytes came")
            return content

        return self.requests.send_or_none(f"read s3://{self.bucket}/{key}", received)

    def put(self, name: str, path: Path, sums: FileSums) -> str | None:
        """Upload a file, replacing a present object; returns the ETag of `transfer.upload`."""
        return upload(self.requests, path, sums, self.bucket, self.key(name))

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        self.requests.send_or_none(
            f"delete {self.uri}/{name}",
            lambda: self.requests.client.remove_object(self.bucket, self.key(name)),
        )


def listed_below(requests: S3Requests, bucket: str, prefix: str) -> dict[str, StoredObject]:
    """Every object whose key begins with `prefix`, by key.

    Raises:
        StorageError: the server refuses or is unreachable.
    """
    found = requests.send(
        f"list s3://{bucket}/{prefix}",
        lambda: list(requests.client.list_objects(bucket, prefix=prefix, recursive=True)),
    )
    return {
        item.object_name: StoredObject(item.size or 0, item.etag or "", item.last_modified)
        for item in found
        if item.object_name and item.last_modified
    }


def at_once(transfers: Iterable[Callable[[], object]]) -> None:
    """Run the transfers, four at a time; the first failure cancels those not yet started."""
    pool = ThreadPoolExecutor(max_workers=TRANSFERS, thread_name_prefix="s3")
    try:
        for running in [pool.submit(transfer) for transfer in transfers]:
            running.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
