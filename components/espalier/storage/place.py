"""What the place of one artifact offers, and which kind of place a URI names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from espalier.records import Manifest, StorageError

S3_SCHEME = "s3://"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Place(Protocol):
    """Where one artifact is published; siblings are a local folder and a prefix in S3."""

    uri: str

    def manifest(self) -> Manifest | None:
        """What is published here, or None where nothing is whole."""
        ...

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to a folder of this machine, every file checked."""
        ...

    def publish(self, directory: Path) -> Manifest:
        """Copy a published artifact of this machine here, the manifest last."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write one small file that belongs to no artifact."""
        ...


def open_place(uri: str, environment: Mapping[str, str]) -> Place:
    """The place that `uri` names; nothing is asked or made yet.

    Args:
        uri: s3://bucket/prefix, or a path.
        environment: says where S3 is and who asks, see `settings.s3_settings`; not read for a path.

    Raises:
        StorageError: another scheme, a bucket or prefix that cannot be one, or no credentials.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        from espalier.storage.local import LocalPlace

        return LocalPlace(Path(uri))
    if not uri.startswith(S3_SCHEME):
        raise StorageError(
            f"{uri}: {scheme[1]}:// is not read here; give s3://BUCKET/KEY or a path"
        )
    bucket, _, prefix = uri.removeprefix(S3_SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or not prefix:
        raise StorageError(f"{uri}: not s3://BUCKET/KEY with a bucket's name and a key below it")
    if any(part in ("", ".", "..") for part in prefix.split("/")):
        raise StorageError(f"{uri}: the key has an empty part, or one that is . or ..")
    from espalier.storage.bucket import S3Place  # minio takes a tenth of a second to import
    from espalier.storage.settings import s3_settings

    return S3Place(s3_settings(environment), bucket, prefix)


def joined(uri: str, *names: str) -> str:
    """The URI of what lies below `uri`."""
    return "/".join((uri.rstrip("/"), *names))
