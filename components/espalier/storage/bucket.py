"""An artifact in S3: the objects below a prefix, of which the manifest is written last."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from espalier.records import (
    MANIFEST_NAME,
    ArtifactError,
    Manifest,
    open_artifact,
    read_manifest,
    replace_directory,
)
from espalier.records.artifact import integrity_digest
from espalier.storage.minio_internals import put_object
from espalier.storage.place import writing
from espalier.storage.requests import TRANSFERS, S3Requests
from espalier.storage.settings import S3Settings
from espalier.storage.transfer import PARTIAL_SUFFIX, download, upload


class S3Place:
    """An artifact below s3://bucket/prefix/."""

    def __init__(self, settings: S3Settings, bucket: str, prefix: str) -> None:
        self._requests = S3Requests(settings)
        self._bucket, self._prefix = bucket, prefix
        self.uri = f"s3://{bucket}/{prefix}"

    def manifest(self) -> Manifest | None:
        """The manifest of the published artifact; None if nothing is published.

        Raises:
            ArtifactError: the manifest does not parse.
            StorageError: the server refuses or is unreachable.
        """
        content = self._read(MANIFEST_NAME)
        return None if content is None else self._parsed(content)

    def fetch(self, destination: Path) -> Manifest:
        """Copy the artifact to the folder `destination`; after a kill the same call resumes.

        Raises:
            ArtifactError: nothing is published here, or a file differs from its digest.
            StorageError: the server refuses or is unreachable, or `destination` cannot be written.
        """
        content = self._read(MANIFEST_NAME)
        if content is None:
            raise ArtifactError(
                f"{self.uri}: no {MANIFEST_NAME}, so no stage finished writing there. Run the "
                "stage that makes it, or correct the URI"
            )
        manifest = self._parsed(content)
        if (destination / MANIFEST_NAME).is_file() and read_manifest(destination) == manifest:
            return open_artifact(destination)
        with writing(destination):
            self._fetch_files(manifest, content, destination)
        return manifest

    def publish(self, directory: Path) -> Manifest:
        """Copy a published local artifact here, replacing the present one.

        There is no manifest while files change, so that no reader sees a mixture of two artifacts.

        Raises:
            ArtifactError: `directory` is not a complete artifact.
            StorageError: the server refuses or is unreachable; the same call resumes.
        """
        manifest = open_artifact(directory)
        content = self._read(MANIFEST_NAME)
        if content is not None:
            if content == (directory / MANIFEST_NAME).read_bytes():
                return manifest
            self._remove(self._key(MANIFEST_NAME))
        _at_once(
            partial(upload, self._requests, directory / name, self._bucket, self._key(name))
            for name in manifest.files
        )
        # old files go only after the new ones are there, and the manifest is written last
        kept = {self._key(name) for name in manifest.files}
        for key in self._listed():
            if key not in kept:
                self._remove(key)
        self.write(MANIFEST_NAME, (directory / MANIFEST_NAME).read_bytes())
        return manifest

    def write(self, name: str, content: bytes) -> None:
        """Write one small object below the prefix.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        key = self._key(name)
        self._requests.send(
            f"write s3://{self._bucket}/{key}",
            lambda: put_object(self._requests.client, self._bucket, key, content),
        )

    def _fetch_files(self, manifest: Manifest, content: bytes, destination: Path) -> None:
        """Fill a draft beside `destination`, kept if the process is killed, and rename it."""
        draft = destination.with_name(f".{destination.name}.fetch")
        draft.mkdir(parents=True, exist_ok=True)
        _drop_others(draft, {*manifest.files, *(n + PARTIAL_SUFFIX for n in manifest.files)})
        _at_once(
            partial(download, self._requests, self._bucket, self._key(name), draft / name, digest)
            for name, digest in manifest.files.items()
        )
        (draft / MANIFEST_NAME).write_bytes(content)
        replace_directory(draft, destination)

    def _read(self, name: str) -> bytes | None:
        key = self._key(name)

        def received() -> bytes:
            response = self._requests.client.get_object(self._bucket, key)
            try:
                return response.read()
            finally:
                response.close()
                response.release_conn()

        return self._requests.send_or_none(f"read s3://{self._bucket}/{key}", received)

    def _parsed(self, content: bytes) -> Manifest:
        """Parse a manifest and check that its files lie below it: they decide where `fetch` writes.

        Raises:
            ArtifactError: it does not parse, was edited, or names a file outside the artifact.
        """
        where = f"{self.uri}/{MANIFEST_NAME}"
        try:
            manifest = Manifest.model_validate_json(content)
        except ValidationError as error:
            raise ArtifactError(
                f"{where}: not a manifest ({error.errors()[0]['msg']}). Delete the artifact and "
                "run the stage that makes it again"
            ) from error
        for name in manifest.files:
            path = PurePosixPath(name)
            climbs = path.is_absolute() or ".." in path.parts or not path.parts
            if climbs or path.as_posix() != name or "\0" in name:
                raise ArtifactError(f"{where}: names the file {name!r}, outside of the artifact")
        if integrity_digest(manifest.files) != manifest.integrity:
            raise ArtifactError(f"{where}: edited after publishing")
        return manifest

    def _listed(self) -> list[str]:
        """Keys of the objects below the prefix."""
        client, below = self._requests.client, f"{self._prefix}/"
        found = self._requests.send(
            f"list {self.uri}",
            lambda: list(client.list_objects(self._bucket, prefix=below, recursive=True)),
        )
        return [item.object_name for item in found if item.object_name]

    def _remove(self, key: str) -> None:
        self._requests.send_or_none(
            f"delete s3://{self._bucket}/{key}",
            lambda: self._requests.client.remove_object(self._bucket, key),
        )

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _drop_others(folder: Path, names: set[str]) -> None:
    """Remove files that an earlier fetch of another version left in the draft."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                shutil.rmtree(path)
        elif path.relative_to(folder).as_posix() not in names:
            path.unlink()


def _at_once(transfers: Iterable[Callable[[], None]]) -> None:
    """Run the transfers, four at a time; the first failure cancels those not yet started."""
    pool = ThreadPoolExecutor(max_workers=TRANSFERS, thread_name_prefix="s3")
    try:
        for running in [pool.submit(transfer) for transfer in transfers]:
            running.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
