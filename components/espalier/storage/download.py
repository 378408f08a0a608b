"""One object into one file: from where an earlier attempt stood, and checked at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minio.error import S3Error
from urllib3.exceptions import HTTPError

from espalier.records import ArtifactError, file_digest

if TYPE_CHECKING:
    from espalier.storage.requests import S3Requests

PARTIAL_SUFFIX = ".espalier-partial"
"""No file of an artifact is named like this."""
_CHUNK_BYTES = 1 << 20
_PARTIAL_CONTENT = 206


def download(requests: S3Requests, bucket: str, key: str, path: Path, digest: str) -> None:
    """Write the object to `path`; a file that is there whole already is kept.

    Args:
        requests: of the server.
        bucket: of the object.
        key: of the object.
        path: the file; until it is whole it has a name of its own, and is kept over kills.
        digest: SHA-256 that the bytes must have.

    Raises:
        ArtifactError: the object has other bytes, twice.
        StorageError: the server refuses, or is away.
    """
    if path.exists() and file_digest(path) == digest:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    went_on = partial.exists()
    _receive_all(requests, bucket, key, partial)
    if file_digest(partial) != digest and went_on:
        # what an earlier attempt left may be of an object that has been replaced since
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
    """Receive as much as the connection gives; whether that was the rest.

    A connection that broke after it had brought something is no fault yet: the next one goes on.
    """
    with partial.open("ab") as stream:
        offset = stream.tell()
        try:
            response = requests.client.get_object(bucket, key, offset=offset)
        except S3Error as error:
            if error.code == "InvalidRange":  # nothing is left: it was whole
                return True
            raise
        try:
            if offset and response.status != _PARTIAL_CONTENT:
                stream.truncate(0)  # the server cannot go on in the middle
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
