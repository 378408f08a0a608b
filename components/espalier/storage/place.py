"""Where an artifact is published: the protocol, the place that a URI names, a local folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from espalier.records import (
    MANIFEST_NAME,
    Manifest,
    StorageError,
    open_artifact,
    read_manifest,
    replace_directory,
)

S3_SCHEME = "s3://"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Place(Protocol):
    """Where one artifact is published: a local folder (here) or an S3 prefix (`bucket`)."""

    uri: str

    def manifest(self) -> Manifest | None:
        """The manifest of the published artifact; None if nothing is published."""
        ...

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to a local folder and check every file."""
        ...

    def publish(self, directory: Path) -> Manifest:
        """Copy a published local artifact here, the manifest last."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write one small file that belongs to no artifact."""
        ...


def open_place(uri: str, environment: Mapping[str, str]) -> Place:
    """The place that `uri` names; nothing is requested or created yet.

    Args:
        uri: s3://bucket/prefix, or a path.
        environment: S3 endpoint and credentials, see `settings.s3_settings`; not read for a path.

    Raises:
        StorageError: unknown scheme, invalid bucket or key, or no credentials.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return LocalPlace(Path(uri))
    if not uri.startswith(S3_SCHEME):
        raise StorageError(
            f"{uri}: {scheme[1]}:// is not supported; give s3://BUCKET/KEY or a path"
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
    """`uri` with path parts appended."""
    return "/".join((uri.rstrip("/"), *names))


class LocalPlace:
    """A local folder; fetch and publish copy, unless source and destination are the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.uri = str(folder)

    def manifest(self) -> Manifest | None:
        """The manifest of the published artifact; None if nothing is published.

        Raises:
            ArtifactError: the manifest does not parse.
        """
        if not (self._folder / MANIFEST_NAME).is_file():
            return None
        return read_manifest(self._folder)

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to the folder `destination`.

        Raises:
            ArtifactError: nothing is published here, or a file differs from its digest.
            StorageError: `destination` cannot be written.
        """
        open_artifact(self._folder)
        return _copied(self._folder, destination)

    def publish(self, directory: Path) -> Manifest:
        """Copy a published artifact here, replacing the present one.

        Raises:
            ArtifactError: `directory` is not a complete artifact.
            StorageError: the folder cannot be written.
        """
        open_artifact(directory)
        return _copied(directory, self._folder)

    def write(self, name: str, content: bytes) -> None:
        """Write one small file in one rename.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._folder / name
        draft = path.with_name(f".{path.name}.draft")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(path)


def _copied(source: Path, destination: Path) -> Manifest:
    if destination.exists() and os.path.samefile(source, destination):
        return read_manifest(source)
    draft = destination.with_name(f".{destination.name}.fetch")
    with writing(destination):
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(source, draft)
        manifest = open_artifact(draft)
        replace_directory(draft, destination)
    return manifest


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes `path`, into a StorageError.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}). Free space, fix the permissions of the "
            "folder, or choose another"
        ) from error
