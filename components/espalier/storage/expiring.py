"""Artifacts in S3 that are kept for a time: outputs that later runs may take, and checkpoints.

Each is an artifact as any other (`layout`). Beside it lies a mark that is as old as its last use,
and the collector deletes all of a prefix that has the mark once everything there is old
(`garbage`): what is read, written or being computed on has a young mark.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from espalier.records import MANIFEST_NAME, ArtifactError, Manifest
from espalier.storage.bucket import S3Location
from espalier.storage.layout import COLLECTING, KEPT_MARK, object_name
from espalier.storage.location import parsed_address
from espalier.storage.settings import S3Settings, s3_settings


class ExpiringLocation(S3Location):
    """An artifact in S3 that is deleted when nobody has used it for a time."""

    def __init__(self, settings: S3Settings, bucket: str, prefix: str) -> None:
        """Name the place; nothing is requested yet.

        Args:
            settings: of the server.
            bucket: of the artifact.
            prefix: of the artifact.
        """
        self._given_up = threading.Event()
        super().__init__(settings, bucket, prefix, given_up=self._given_up)

    def give_up(self) -> None:
        """Have the next request raise `requests.TransferAbandoned`, in whichever thread."""
        self._given_up.set()

    def touch(self) -> None:
        """Mark the artifact as used now.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        self.write(KEPT_MARK, b"")

    def keep(self, directory: Path) -> Manifest:
        """Publish a local artifact here, and mark it before, so that a killed attempt has its mark.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or changes.
            StorageError: as `publish`.
        """
        self.touch()
        return self.publish(directory)

    def replace(self, directory: Path) -> Manifest:
        """`keep`, and delete at once the contents that the former manifest alone named.

        For checkpoints, which are as large as they are short-lived. Who is reading the former one
        finds a content missing and looks for the new one.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or changes.
            StorageError: as `publish`.
        """
        former = self._named()
        manifest = self.keep(directory)
        for digest in former - set(manifest.files.values()):
            self._objects.delete(object_name(digest))
        return manifest

    def forget(self) -> None:
        """Delete all that lies here, the manifest first; the collector goes on after a kill.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        for name in in_order_of_deletion(self._objects.listed()):
            self._objects.delete(name)
        requests, bucket = self._objects.requests, self._objects.bucket
        for upload in requests.uploads_below(bucket, self._objects.key("")):
            requests.forget_upload(bucket, upload.key, upload.upload_id)

    def _named(self) -> set[str]:
        """Contents that the manifest names; none where it does not parse."""
        try:
            manifest = self.manifest()
        except ArtifactError:
            return set()
        return set() if manifest is None else set(manifest.files.values())


def in_order_of_deletion(names: Mapping[str, object]) -> list[str]:
    """All names but a collector's mark: manifest, contents, mark of being kept.

    A deletion that is killed then leaves no artifact that looks whole, and the mark by which the
    collector goes on.
    """
    ranks = {MANIFEST_NAME: 0, KEPT_MARK: 2}
    return sorted(names.keys() - {COLLECTING}, key=lambda name: (ranks.get(name, 1), name))


def open_expiring(uri: str, environment: Mapping[str, str]) -> ExpiringLocation:
    """The kept place that `uri` names; nothing is requested yet.

    Args:
        uri: s3://bucket/prefix.
        environment: S3 endpoint and credentials, see `settings.s3_settings`.

    Raises:
        StorageError: no such address, or no credentials.
    """
    bucket, prefix = parsed_address(uri)
    return ExpiringLocation(s3_settings(environment), bucket, prefix)
