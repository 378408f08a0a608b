"""An artifact in S3: the objects below a prefix, and the manifest that names them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.records import (
    MANIFEST_NAME,
    ArtifactError,
    Manifest,
    StorageError,
    expect_replaceable,
    file_digest,
    only_writer,
    open_artifact,
    read_manifest,
    replace_directory,
)
from espalier.storage.layout import PARTIAL_SUFFIX, object_name, parsed_manifest
from espalier.storage.location import WRITER_WAIT_S, writing
from espalier.storage.objects import ArtifactObjects, Clock, StoredManifest, at_once
from espalier.storage.publication import Publication
from espalier.storage.requests import S3Requests
from espalier.storage.settings import S3Settings

if TYPE_CHECKING:
    import threading

    import urllib3

_ATTEMPTS = 3
"""Fetches of an artifact that keeps being replaced, before that counts as an error."""


class S3Location:
    """An artifact below s3://bucket/prefix/, in the objects that `layout` names."""

    def __init__(
        self,
        settings: S3Settings,
        bucket: str,
        prefix: str,
        *,
        clock: Clock | None = None,
        pool: urllib3.PoolManager | None = None,
        given_up: threading.Event | None = None,
    ) -> None:
        """Create the location without sending a request.

        Args:
            settings: endpoint and credentials of the server.
            bucket: bucket of the artifact.
            prefix: prefix of the artifact's keys, without a slash at the end.
            clock: for the ages of objects; None is this machine's.
            pool: sends the requests; None makes one.
            given_up: once it is set, requests raise `TransferAbandoned`.
        """
        self._objects = ArtifactObjects(
            S3Requests(settings, pool, given_up=given_up), bucket, prefix
        )
        self._clock = clock or Clock()
        self.uri = self._objects.uri

    def manifest(self) -> Manifest | None:
        """The manifest of the published artifact; None if nothing is published.

        Raises:
            ArtifactError: the manifest does not parse.
            StorageError: the server refuses or is unreachable.
        """
        stored = self._objects.read_manifest()
        return None if stored is None else self._parsed(stored)

    def lost_files(self, manifest: Manifest) -> list[str]:
        """Files of the manifest that are missing or have another size, from a listing alone.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        present = self._objects.listed()

        def is_lost(name: str, digest: str) -> bool:
            found = present.get(object_name(digest)) or present.get(name)
            return found is None or found.num_bytes != manifest.sizes.get(name, found.num_bytes)

        return sorted(name for name, digest in manifest.files.items() if is_lost(name, digest))

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to the folder `destination`; after a kill the same call resumes.

        Raises:
            ArtifactError: nothing is published here, or a file is lost or damaged.
            StorageError: the server refuses or is unreachable, or `destination` cannot be written.
        """
        expect_replaceable(destination)
        stored = self._objects.read_manifest()
        for _ in range(_ATTEMPTS):
            if stored is None:
                raise ArtifactError(
                    f"{self.uri}: no {MANIFEST_NAME}, so no stage finished writing there. Run the "
                    "stage that makes it, or correct the URI"
                )
            manifest = self._parsed(stored)
            if _holds(destination, manifest):
                return manifest
            with writing(destination), only_writer(destination, wait_s=WRITER_WAIT_S):
                if _holds(destination, manifest):  # another process fetched it meanwhile
                    return manifest
                lost = self._fetch_files(manifest, stored.content, destination)
            if lost is None:
                return manifest
            # the artifact may have been replaced, and its old files deleted, during the fetch
            before, stored = stored, self._objects.read_manifest()
            if stored == before:
                raise ArtifactError(
                    f"{self.uri}/{lost}: in the manifest, but missing. Run the stage "
                    f"{manifest.producer} again: publishing puts it back"
                )
        raise ArtifactError(f"{self.uri}: replaced during every attempt to read it")

    def publish(self, directory: Path) -> Manifest:
        """Publish a local artifact here, replacing the present one, by the steps of `publication`.

        Returns:
            The manifest that is published afterwards: this one, or that of another writer who
            published the same work first.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or changes.
            StorageError: another writer published other content meanwhile; or the server refuses or
                is unreachable, and the same call resumes.
        """
        return Publication(self._objects, directory, self._clock).publish()

    def write(self, name: str, content: bytes) -> None:
        """Write one small object below the prefix.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        objects = self._objects
        objects.requests.put(objects.bucket, objects.key(name), content)

    def read(self, name: str, *, most: int) -> bytes | None:
        """Return a small object below the prefix that belongs to no artifact; None without one.

        Args:
            name: its name below the prefix.
            most: bytes of the longest that is read; a longer one counts as none.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        stored = self._objects.read_small(name, most)
        return None if stored is None or len(stored.content) > most else stored.content

    def fetch_file(self, manifest: Manifest, name: str, path: Path) -> None:
        """Download one file of the artifact; a complete one is kept.

        Raises:
            ArtifactError: the file is lost or damaged.
            StorageError: the server refuses or is unreachable.
        """
        digest, size = manifest.files[name], manifest.sizes.get(name)
        if not any(
            self._objects.fetch(stored, path, digest, num_bytes=size)
            for stored in (object_name(digest), name)
        ):
            raise self._lost(name)

    def read_range(self, manifest: Manifest, name: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` of one file of the artifact, unchecked.

        Raises:
            ArtifactError: the file is lost.
            StorageError: the server refuses or is unreachable.
        """
        for stored in (object_name(manifest.files[name]), name):
            found = self._objects.read_range(stored, start, end)
            if found is not None:
                return found
        raise self._lost(name)

    def _lost(self, name: str) -> ArtifactError:
        return ArtifactError(
            f"{self.uri}/{name}: in the manifest, but not in S3 (any more). Publish the artifact "
            "again, or run the stage that makes it"
        )

    def _fetch_files(self, manifest: Manifest, content: bytes, destination: Path) -> str | None:
        """Fill a draft beside `destination`, which survives a kill, and rename it.

        Returns:
            The name of a file that is missing; None if none is.
        """
        draft = destination.with_name(f".{destination.name}.fetch")
        draft.mkdir(parents=True, exist_ok=True)
        _drop_others(draft, {*manifest.files, *(n + PARTIAL_SUFFIX for n in manifest.files)})
        _expect_room(draft, manifest)
        names: dict[str, list[str]] = {}
        for name, digest in manifest.files.items():
            names.setdefault(digest, []).append(name)
        lost: list[str] = []
        at_once(
            partial(self._fetch_content, manifest, digest, draft, named, lost)
            for digest, named in names.items()
        )
        if lost:
            return min(lost)
        (draft / MANIFEST_NAME).write_bytes(content)
        replace_directory(draft, destination)
        return None

    def _fetch_content(
        self, manifest: Manifest, digest: str, draft: Path, names: list[str], lost: list[str]
    ) -> None:
        """Download one content and copy it to each of `names`; append a lost name to `lost`."""
        name, *others = names
        size = manifest.sizes.get(name)
        if not any(
            self._objects.fetch(stored, draft / name, digest, num_bytes=size)
            for stored in (object_name(digest), name)
        ):
            lost.append(name)
            return
        for other in others:
            target = draft / other
            if target.exists() and file_digest(target) == digest:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            written = target.with_name(target.name + PARTIAL_SUFFIX)
            shutil.copyfile(draft / name, written)
            written.replace(target)

    def _parsed(self, stored: StoredManifest) -> Manifest:
        return parsed_manifest(stored.content, f"{self.uri}/{MANIFEST_NAME}")


def _holds(destination: Path, manifest: Manifest) -> bool:
    """Whether the folder has this very artifact, undamaged."""
    if not (destination / MANIFEST_NAME).is_file():
        return False
    try:
        return read_manifest(destination) == manifest == open_artifact(destination)
    except ArtifactError:
        return False


def _expect_room(draft: Path, manifest: Manifest) -> None:
    """Check that the disk has room for the files that are still missing.

    Raises:
        StorageError: they need more than is free.
    """
    missing = [name for name in manifest.sizes if not (draft / name).exists()]
    need = sum(manifest.sizes[name] for name in missing)
    need -= sum(
        partial.stat().st_size
        for name in missing
        if (partial := draft / (name + PARTIAL_SUFFIX)).exists()
    )
    free = shutil.disk_usage(draft).free
    if need > free:
        raise StorageError(
            f"{draft.parent}: the artifact needs {need / 1e9:.1f} GB more, and {free / 1e9:.1f} GB "
            "are free. Free space, or choose another folder"
        )


def _drop_others(folder: Path, names: set[str]) -> None:
    """Remove all links from the draft, and the files that a fetch of another version left."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.is_symlink() or path.relative_to(folder).as_posix() not in names:
            path.unlink()
