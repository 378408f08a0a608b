"""Locations of a published artifact: the protocol, the location of a URI, a local folder."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from espalier.records import (
    MANIFEST_NAME,
    ArtifactError,
    Manifest,
    StorageError,
    expect_replaceable,
    only_writer,
    open_artifact,
    read_manifest,
    replace_directory,
)
from espalier.storage.layout import parsed_manifest

S3_SCHEME = "s3://"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class ArtifactLocation(Protocol):
    """Location of one published artifact: a local folder (here) or an S3 prefix (`bucket`)."""

    uri: str

    def manifest(self) -> Manifest | None:
        """The manifest of the published artifact; None if nothing is published."""
        ...

    def lost_files(self, manifest: Manifest) -> list[str]:
        """Files of the manifest that are missing or have another size; no content is read."""
        ...

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to a local folder and check every file."""
        ...

    def publish(self, directory: Path) -> Manifest:
        """Copy a published local artifact here; readers find a whole artifact at any time."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write one small file that belongs to no artifact."""
        ...


def open_location(uri: str, environment: Mapping[str, str]) -> ArtifactLocation:
    """The location at `uri`; nothing is requested or created yet.

    Args:
        uri: s3://bucket/prefix, or a path.
        environment: S3 endpoint and credentials, as for `settings.s3_settings`; not read for a
            path.

    Raises:
        StorageError: unknown scheme, invalid bucket or key, or no credentials.
    """
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return LocalLocation(Path(uri))
    if not uri.startswith(S3_SCHEME):
        raise StorageError(
            f"{uri}: {scheme[1]}:// is not supported; give s3://BUCKET/KEY or a path"
        )
    bucket, prefix = parsed_address(uri)
    from espalier.storage.bucket import S3Location  # minio takes a tenth of a second to import
    from espalier.storage.settings import s3_settings

    return S3Location(s3_settings(environment), bucket, prefix)


def parsed_address(uri: str) -> tuple[str, str]:
    """Bucket and key of s3://bucket/key.

    Raises:
        StorageError: `uri` has another form.
    """
    bucket, _, prefix = uri.removeprefix(S3_SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not uri.startswith(S3_SCHEME) or not _BUCKET.fullmatch(bucket) or not prefix:
        raise StorageError(f"{uri}: not s3://BUCKET/KEY with a bucket's name and a key below it")
    if any(part in ("", ".", "..") for part in prefix.split("/")):
        raise StorageError(f"{uri}: the key has an empty part, or one that is . or ..")
    return bucket, prefix


def parsed_bucket(uri: str) -> tuple[str, str]:
    """Bucket and prefix of s3://bucket/prefix; the prefix is "" for the whole bucket.

    Raises:
        StorageError: `uri` has another form.
    """
    bucket, _, prefix = uri.removeprefix(S3_SCHEME).rstrip("/").partition("/")
    if not uri.startswith(S3_SCHEME) or not _BUCKET.fullmatch(bucket):
        raise StorageError(f"{uri}: give s3://BUCKET or s3://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


def joined(uri: str, *names: str) -> str:
    """`uri` with path parts appended."""
    return "/".join((uri.rstrip("/"), *names))


class LocalLocation:
    """A local folder; `fetch` and `publish` copy unless source and destination are the same."""

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

    def lost_files(self, manifest: Manifest) -> list[str]:
        """Files of the manifest that are missing or have another size."""

        def is_lost(name: str) -> bool:
            path = self._folder / name
            if not path.is_file():
                return True
            return path.stat().st_size != manifest.sizes.get(name, path.stat().st_size)

        return sorted(filter(is_lost, manifest.files))

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to the folder `destination`.

        Raises:
            ArtifactError: nothing is published here, or a file differs from its digest.
            StorageError: `destination` cannot be written.
        """
        for _ in range(_ATTEMPTS):
            before = _state(self._folder)
            try:
                return _copied(self._folder, destination)
            except (ArtifactError, FileNotFoundError):
                # the folder was replaced during the copy, or it is damaged
                if _state(self._folder) == before:
                    raise
        raise ArtifactError(f"{self._folder}: replaced during every attempt to read it")

    def publish(self, directory: Path) -> Manifest:
        """Copy a published artifact here, replacing the present one in one step.

        Two writers take turns, so the whole artifact of the second remains.

        Raises:
            ArtifactError: `directory` is not a complete artifact.
            StorageError: the folder cannot be written.
        """
        return _copied(directory, self._folder)

    def write(self, name: str, content: bytes) -> None:
        """Write one small file under a draft name and rename it.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._folder / name
        draft = path.with_name(f".{path.name}.draft")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content)
            draft.replace(path)


_ATTEMPTS = 10
"""Copies of an artifact that keeps being replaced, before that counts as an error."""
_CHUNK_BYTES = 1 << 20
WRITER_WAIT_S = 3600.0
"""Time to wait for another process that fills the same folder; copies of policies take minutes."""


def _copied(source: Path, destination: Path) -> Manifest:
    """Copy the files that the manifest names, reading each once, and rename the copy."""
    read_manifest(source)  # its error tells the user what to do if there is no manifest
    if source.exists() and destination.exists() and source.samefile(destination):
        return open_artifact(source)
    ours, theirs = source.resolve(), destination.resolve()
    if theirs.is_relative_to(ours) or ours.is_relative_to(theirs):
        raise ArtifactError(
            f"{destination}: a copy of {source} there would damage it. Choose another --out"
        )
    expect_replaceable(destination)
    content = (source / MANIFEST_NAME).read_bytes()
    manifest = parsed_manifest(content, str(source / MANIFEST_NAME))
    draft = destination.with_name(f".{destination.name}.fetch")

    def copied_digest(path: Path) -> str:
        return _copy(path, draft / path.relative_to(source), source)

    with writing(destination), only_writer(destination, wait_s=WRITER_WAIT_S):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            is_same = open_artifact(source, digest=copied_digest) == manifest
        except FileNotFoundError as error:
            raise ArtifactError(f"{source}: replaced while it was copied") from error
        if not is_same:
            raise ArtifactError(f"{source}: replaced while it was copied; copy it again")
        (draft / MANIFEST_NAME).write_bytes(content)
        replace_directory(draft, destination)
    return manifest


def _copy(path: Path, target: Path, folder: Path) -> str:
    """Copy a file and return its SHA-256.

    Raises:
        ArtifactError: it is a link to something outside of `folder`.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ArtifactError(f"{path}: a link to a file outside of its artifact")
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
    return digest.hexdigest()


def _state(folder: Path) -> tuple[int, int] | None:
    """Inode and change time, which differ after each replacement, even by the same content."""
    try:
        status = folder.stat()
    except FileNotFoundError:  # between two renames, or nothing is there
        return None
    return status.st_ino, status.st_ctime_ns


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes `path`, into a StorageError.

    Raises:
        StorageError: `path` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}). Free space, fix the permissions of the "
            "folder, or choose another"
        ) from error
