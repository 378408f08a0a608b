"""Artifacts in S3 that are kept for a time: outputs that later runs may reuse, and checkpoints.

Such an artifact has the same objects as any other (`layout`), and a mark beside them that is
written again at every use, so that its age is the time since the last use. The collector
(`garbage`) deletes everything below a prefix with a mark once all of it, mark included, is old.
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
        """Create the location without sending a request.

        Args:
            settings: endpoint and credentials of the server.
            bucket: bucket of the artifact.
            prefix: prefix of the artifact's keys, without a slash at the end.
        """
        self._given_up = threading.Event()
        super().__init__(settings, bucket, prefix, given_up=self._given_up)

    def give_up(self) -> None:
        """Make the next request of any thread raise `requests.TransferAbandoned`."""
        self._given_up.set()

    def touch(self) -> None:
        """Mark the artifact as used now.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        self.write(KEPT_MARK, b"")

    def keep(self, directory: Path) -> Manifest:
        """Publish a local artifact here. The mark is written first, for a killed attempt expires.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or changes.
            StorageError: as for `publish`.
        """
        self.touch()
        return self.publish(directory)

    def replace(self, directory: Path) -> Manifest:
        """`keep`, then delete the contents that only the former manifest named.

        For checkpoints, which are large and short-lived. A reader of the former one finds a content
        missing, reads the manifest again and fetches the new one.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or changes.
            StorageError: as for `publish`.
        """
        try:
            former = self.manifest()
        except ArtifactError:
            former = None  # one that does not parse names no contents
        manifest = self.keep(directory)
        named = set() if former is None else set(former.files.values())
        for digest in named - set(manifest.files.values()):
            self._objects.delete(object_name(digest))
        return manifest

    def forget(self) -> None:
        """Delete everything here, the manifest first. After a kill the collector does the rest.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        for name in in_order_of_deletion(self._objects.listed()):
            self._objects.delete(name)
        requests, bucket = self._objects.requests, self._objects.bucket
        for upload in requests.uploads_below(bucket, self._objects.key("")):
            requests.forget_upload(bucket, upload.key, upload.upload_id)


def in_order_of_deletion(names: Mapping[str, object]) -> list[str]:
    """Names to delete, in order: manifest, contents, mark of the last use; no collector's mark.

    A deletion that is killed then leaves no artifact that looks whole, and the mark by which the
    collector recognizes the rest.
    """
    ranks = {MANIFEST_NAME: 0, KEPT_MARK: 2}
    return sorted(names.keys() - {COLLECTING}, key=lambda name: (ranks.get(name, 1), name))


def open_expiring(uri: str, environment: Mapping[str, str]) -> ExpiringLocation:
    """The expiring location at `uri`; no request is sent yet.

    Args:
        uri: s3://bucket/prefix.
        environment: S3 endpoint and credentials, as for `settings.s3_settings`.

    Raises:
        StorageError: `uri` has another form, or there are no credentials.
    """
    bucket, prefix = parsed_address(uri)
    return ExpiringLocation(s3_settings(environment), bucket, prefix)
