"""Objects below a prefix one by one, whoever wrote them: what backups read and write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from espalier.records import StorageError
from espalier.storage import minio_internals
from espalier.storage.objects import StoredObject, listed_below
from espalier.storage.place import S3_SCHEME, is_bucket
from espalier.storage.requests import S3Requests
from espalier.storage.settings import S3Settings, s3_settings
from espalier.storage.transfer import FileSums, download, receive, upload

if TYPE_CHECKING:
    import urllib3


class ObjectTree:
    """What lies below s3://bucket/prefix/, by names below the prefix."""

    def __init__(
        self,
        settings: S3Settings,
        bucket: str,
        prefix: str = "",
        *,
        pool: urllib3.PoolManager | None = None,
    ) -> None:
        """Name the tree; nothing is requested yet.

        Args:
            settings: of the server.
            bucket: of the objects.
            prefix: of the objects; empty for the whole bucket.
            pool: sends the requests; None makes one.
        """
        self._requests = S3Requests(settings, pool)
        self._bucket = bucket
        self._below = f"{prefix}/" if prefix else ""
        self.endpoint = settings.endpoint
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")

    def listed(self, folder: str = "") -> dict[str, StoredObject]:
        """Every object whose name begins with `folder`, by its name.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        found = listed_below(self._requests, self._bucket, self._below + folder)
        return {key.removeprefix(self._below): stored for key, stored in found.items()}

    def listed_or_none(self) -> dict[str, StoredObject]:
        """Every object by its name; none where there is no bucket.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        return self.listed() if self.has_bucket() else {}

    def receive(self, name: str, path: Path, stored: StoredObject) -> str | None:
        """Download an object to the new file `path`.

        Returns:
            Its SHA-256 in hex; None where it was replaced or deleted since it was listed.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        key = self._below + name
        digest = receive(self._requests, self._bucket, key, path)
        # after a broken connection the rest may be of a newer object
        present = self._requests.send_or_none(
            f"look at {self.uri}/{name}",
            lambda: self._requests.client.stat_object(self._bucket, key),
        )
        return digest if present is not None and present.etag == stored.etag else None

    def fetch(self, name: str, path: Path, digest: str) -> bool:
        """Download an object whose SHA-256 is known; whether there is one.

        Raises:
            ArtifactError: its bytes are others.
            StorageError: the server refuses or is unreachable.
        """
        return download(self._requests, self._bucket, self._below + name, path, digest)

    def put(self, name: str, path: Path) -> None:
        """Upload a file, replacing what is there.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        upload(self._requests, path, FileSums.of(path), self._bucket, self._below + name)

    def put_if(self, name: str, path: Path, present: StoredObject | None) -> bool:
        """Upload a file in the place of `present`, or of nothing; not of what came meanwhile.

        Args:
            name: of the object.
            path: of the file.
            present: what is replaced, as it was listed; None if nothing was there.

        Returns:
            Whether the object has the file's bytes now, whoever wrote them.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        key, sums = self._below + name, FileSums.of(path)
        condition = minio_internals.IF_ABSENT
        if present is not None:
            condition = minio_internals.if_unchanged(present.etag)
        if upload(self._requests, path, sums, self._bucket, key, condition=condition) is not None:
            return True
        # a write whose answer was lost is sent again, and meets what it has written itself
        with TemporaryDirectory(prefix="espalier-written-") as folder:
            found = receive(self._requests, self._bucket, key, Path(folder, "content"))
        return found == sums.sha256

    def put_new(self, name: str, content: bytes) -> bool:
        """Write a small object if there is none of this name; whether that was so.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        key = self._below + name
        etag = self._requests.send_if(
            f"write {self.uri}/{name}",
            lambda: minio_internals.put_object(
                self._requests.client,
                self._bucket,
                key,
                content,
                condition=minio_internals.IF_ABSENT,
            ),
        )
        return etag is not None

    def read(self, name: str) -> bytes | None:
        """A small object's bytes; None if there is none.

        Raises:
            StorageError: the server refuses or is unreachable.
        """

        def received() -> bytes:
            response = self._requests.client.get_object(self._bucket, self._below + name)
            try:
                return response.read()
            finally:
                response.close()
                response.release_conn()

        return self._requests.send_or_none(f"read {self.uri}/{name}", received)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        self._requests.send_or_none(
            f"delete {self.uri}/{name}",
            lambda: self._requests.client.remove_object(self._bucket, self._below + name),
        )

    def make_bucket(self) -> bool:
        """Make the bucket if there is none; whether it was made.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        if self.has_bucket():
            return False
        self._requests.send(
            f"make the bucket {self._bucket}",
            lambda: self._requests.client.make_bucket(self._bucket),
        )
        return True

    def has_bucket(self) -> bool:
        """Whether there is the bucket.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        return self._requests.send(
            f"look for the bucket {self._bucket}",
            lambda: self._requests.client.bucket_exists(self._bucket),
        )


def open_tree(uri: str, environment: Mapping[str, str]) -> ObjectTree:
    """The objects below `uri`; nothing is requested yet.

    Args:
        uri: s3://BUCKET or s3://BUCKET/PREFIX.
        environment: S3 endpoint and credentials, see `settings.s3_settings`.

    Raises:
        StorageError: not such a URI, or no credentials.
    """
    bucket, _, prefix = uri.removeprefix(S3_SCHEME).rstrip("/").partition("/")
    if not uri.startswith(S3_SCHEME) or not is_bucket(bucket):
        raise StorageError(f"{uri}: give s3://BUCKET or s3://BUCKET/PREFIX")
    return ObjectTree(s3_settings(environment), bucket, prefix)
