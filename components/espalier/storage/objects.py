"""Objects below a prefix of S3: those of an artifact, or any that backups read and write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from espalier.records import MANIFEST_NAME
from espalier.storage.layout import MAX_MANIFEST_BYTES
from espalier.storage.place import parsed_bucket
from espalier.storage.requests import TRANSFERS, S3Requests, etag_of, while_etag
from espalier.storage.settings import s3_settings
from espalier.storage.transfer import FileSums, download, receive, upload


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, for whoever compares the ages of objects or waits."""

    now: Callable[[], datetime] = _utc_now
    """In UTC. S3 refuses requests of a clock that differs by more than 15 minutes."""
    sleep: Callable[[float], None] = time.sleep


class StoredContent(NamedTuple):
    """An object's bytes, with the ETag by which a later write asks for this very version."""

    content: bytes
    etag: str


class StoredObject(NamedTuple):
    """An object as a listing shows it."""

    num_bytes: int
    etag: str
    modified: datetime


class ObjectTree:
    """What lies below s3://bucket/prefix/, by names below the prefix.

    All methods raise StorageError where the server refuses or is unreachable.
    """

    def __init__(self, requests: S3Requests, bucket: str, prefix: str = "") -> None:
        """Name the tree; nothing is requested yet.

        Args:
            requests: of the server.
            bucket: of the objects.
            prefix: of the objects; empty for the whole bucket.
        """
        self.requests, self.bucket = requests, bucket
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._below = f"{prefix}/" if prefix else ""

    def key(self, name: str) -> str:
        """Key of the object with this name below the prefix."""
        return self._below + name

    def listed(self, folder: str = "") -> dict[str, StoredObject]:
        """Every object whose name begins with `folder`, by its name."""
        found = listed_below(self.requests, self.bucket, self._below + folder)
        return {key.removeprefix(self._below): stored for key, stored in found.items()}

    def read(self, name: str, max_bytes: int | None = None) -> StoredContent | None:
        """A small object, cut after `max_bytes`; None if there is none."""

        def received() -> StoredContent:
            response = self.requests.client.get_object(self.bucket, self.key(name))
            try:
                return StoredContent(response.read(max_bytes), etag_of(response))
            finally:
                response.close()
                response.release_conn()

        return self.requests.send_or_none(f"read {self.uri}/{name}", received)

    def read_manifest(self) -> StoredContent | None:
        """The manifest; None if there is none.

        Of an object that is too long to be a manifest, one byte more than a manifest may have.
        """
        return self.read(MANIFEST_NAME, MAX_MANIFEST_BYTES + 1)

    def write_if(self, name: str, content: bytes, etag: str | None) -> str | None:
        """Write a small object if the present one has this ETag, or if there is none (None).

        Returns:
            The new ETag; None if the condition did not hold, or if the answer was lost: read what
            is there.
        """
        return self.requests.put(self.bucket, self.key(name), content, while_etag(etag))

    def receive(self, name: str, path: Path, stored: StoredObject) -> str | None:
        """Download an object to the new file `path`.

        Returns:
            Its SHA-256 in hex; None where it was replaced or deleted since it was listed.
        """
        key = self.key(name)
        digest = receive(self.requests, self.bucket, key, path)
        # after a broken connection the rest may be of a newer object
        present = self.requests.send_or_none(
            f"look at {self.uri}/{name}",
            lambda: self.requests.client.stat_object(self.bucket, key),
        )
        return digest if present is not None and present.etag == stored.etag else None

    def fetch(self, name: str, path: Path, digest: str, *, num_bytes: int | None = None) -> bool:
        """Download an object whose SHA-256 is known, see `transfer.download`; whether there is one.

        Raises:
            ArtifactError: its bytes are others.
        """
        key = self.key(name)
        return download(self.requests, self.bucket, key, path, digest, num_bytes=num_bytes)

    def put(self, name: str, path: Path, sums: FileSums) -> str | None:
        """Upload a file, replacing what is there; its ETag as by `transfer.upload`."""
        return upload(self.requests, path, sums, self.bucket, self.key(name))

    def put_if(self, name: str, path: Path, present: StoredObject | None) -> bool:
        """Upload a file in the place of `present`, or of nothing; not of what came meanwhile.

        Args:
            name: of the object.
            path: of the file.
            present: what is replaced, as it was listed; None if nothing was there.

        Returns:
            Whether the object has the file's bytes now, whoever wrote them.
        """
        key, sums = self.key(name), FileSums.of(path)
        condition = while_etag(present.etag if present else None)
        if upload(self.requests, path, sums, self.bucket, key, condition=condition) is not None:
            return True
        # a write whose answer was lost is sent again, and meets what it has written itself
        with TemporaryDirectory(prefix="espalier-written-") as folder:
            found = receive(self.requests, self.bucket, key, Path(folder, "content"))
        return found == sums.sha256

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        self.requests.send_or_none(
            f"delete {self.uri}/{name}",
            lambda: self.requests.client.remove_object(self.bucket, self.key(name)),
        )

    def make_bucket(self) -> bool:
        """Make the bucket if there is none; whether it was made."""
        if self.has_bucket():
            return False
        self.requests.send(
            f"make the bucket {self.bucket}",
            lambda: self.requests.client.make_bucket(self.bucket),
        )
        return True

    def has_bucket(self) -> bool:
        """Whether there is the bucket."""
        return self.requests.send(
            f"look for the bucket {self.bucket}",
            lambda: self.requests.client.bucket_exists(self.bucket),
        )


def open_tree(uri: str, environment: Mapping[str, str]) -> ObjectTree:
    """The objects below `uri`; nothing is requested yet.

    Args:
        uri: s3://BUCKET or s3://BUCKET/PREFIX.
        environment: S3 endpoint and credentials, see `settings.s3_settings`.

    Raises:
        StorageError: not such a URI, or no credentials.
    """
    bucket, prefix = parsed_bucket(uri)
    return ObjectTree(S3Requests(s3_settings(environment)), bucket, prefix)


def listed_below(requests: S3Requests, bucket: str, prefix: str) -> dict[str, StoredObject]:
    """Every object whose key begins with `prefix`, by its key.

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
