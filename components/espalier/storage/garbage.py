"""Garbage collection in S3: contents of replaced artifacts and of killed publications.

by hand         espalier data collect s3://bucket/runs --dry-run
on a cluster    the CronJob espalier-artifact-gc of `k8s/`

All objects of an artifact lie below its prefix (`layout`), so each prefix is judged alone. An
object that the manifest does not name is garbage once it and the manifest are older than the given
age: until then the former manifest may have a reader, or the next one a writer.

Contents without a manifest are deleted only with `unpublished`: the manifest may be the only object
that was lost, and other programs name objects by their SHA-256 as well.

An artifact that is kept for a time (`expiring`: outputs that later runs may reuse, checkpoints) is
deleted whole once all of it, with the mark of its last use, is older than `kept_age`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import NamedTuple

from espalier.records import MANIFEST_NAME, ArtifactError, StorageError
from espalier.storage.expiring import in_order_of_deletion
from espalier.storage.layout import (
    COLLECTING,
    KEPT_MARK,
    digest_of_key,
    object_name,
    parsed_manifest,
)
from espalier.storage.location import parsed_bucket
from espalier.storage.objects import (
    ArtifactObjects,
    Clock,
    StoredManifest,
    StoredObject,
    listed_below,
)
from espalier.storage.publication import COLLECTOR_LIFE
from espalier.storage.requests import S3Requests, Upload
from espalier.storage.settings import s3_settings

SHORTEST_AGE = timedelta(days=1)
"""Twice the time for which a publication relies on contents that no manifest names."""
DEFAULT_AGE = timedelta(days=7)
KEPT_AGE = timedelta(days=30)
"""Time since the last use after which an expiring artifact is deleted; a monthly run finds its
data."""
_DELETING_FOR = timedelta(minutes=1)
"""Time for which a collector deletes by one listing. Even with the time-out of a request this ends
long before `COLLECTOR_LIFE`, after which writers no longer wait for the collector."""
_IMAGE_BLOBS, _IMAGE_LAYOUT = "blobs", ("oci-layout", "index.json")
"""Folder of the contents of an OCI image layout, and the files beside that folder."""


class Garbage(NamedTuple):
    """Objects and uploads that may be deleted below one artifact's prefix."""

    uri: str
    objects: dict[str, StoredObject]
    """Garbage by name below the prefix."""
    uploads: list[Upload]
    """Incomplete uploads."""
    fault: str | None = None
    """Reason to delete nothing of this artifact; None if there is none."""


def find_garbage(
    listed: Mapping[str, StoredObject],
    manifest: StoredManifest | None,
    before: datetime,
    *,
    kept_before: datetime,
    unpublished: bool = False,
) -> dict[str, StoredObject]:
    """Objects below an artifact's prefix that may be deleted, by name.

        without a manifest   none; with `unpublished` the contents, but no other object, because
                             that may belong to another program
        with a manifest      every file that it does not name, because a prefix belongs to one
                             artifact; but no folder inside with a manifest of its own
        with a mark          all objects, in the order in which to delete them, once none is young

    Args:
        listed: objects by their names below the prefix.
        manifest: the artifact's manifest; None if there is none.
        before: objects modified since then are kept.
        kept_before: an expiring artifact that was used since then is kept.
        unpublished: without a manifest, contents may be deleted too.

    Raises:
        ArtifactError: the manifest does not parse, so the files that it names are unknown.
    """
    if KEPT_MARK in listed:
        names = in_order_of_deletion(listed)
        if all(listed[name].modified < kept_before for name in names):
            return {name: listed[name] for name in names}
        unpublished = True  # the mark shows that the objects are not another program's
    if manifest is None and not unpublished:
        return {}
    kept = {MANIFEST_NAME, COLLECTING, KEPT_MARK}
    if manifest is not None:
        if listed[MANIFEST_NAME].modified >= before:
            return {}
        for name, digest in parsed_manifest(manifest.content, MANIFEST_NAME).files.items():
            kept.add(object_name(digest))
            if object_name(digest) not in listed:
                kept.add(name)  # Kubeflow's launcher names objects by their files
    inner = tuple(
        name.removesuffix(MANIFEST_NAME)
        for name in listed.keys() - kept
        if name.endswith(f"/{MANIFEST_NAME}")
    )
    return {
        name: found
        for name, found in listed.items()
        if name not in kept
        and found.modified < before
        and (manifest is not None or object_name(digest_of_key(name) or "") == name)
        and not name.startswith(inner)
    }


class Collector:
    """A garbage collector for s3://bucket/prefix."""

    def __init__(
        self,
        requests: S3Requests,
        bucket: str,
        prefix: str,
        clock: Clock | None = None,
        *,
        kept_age: timedelta = KEPT_AGE,
        unpublished: bool = False,
    ) -> None:
        """Create the collector without sending a request.

        Args:
            requests: client of the server.
            bucket: bucket to search.
            prefix: only keys below it are searched; "" is the whole bucket.
            clock: for the ages of objects; None is this machine's.
            kept_age: time since the last use after which an expiring artifact is deleted; at least
                `SHORTEST_AGE`.
            unpublished: delete contents without a manifest, too.
        """
        self._requests, self._bucket = requests, bucket
        self._below = f"{prefix}/" if prefix else ""
        self._clock = clock or Clock()
        self._kept_age, self._unpublished = kept_age, unpublished

    def find(self, age: timedelta) -> list[Garbage]:
        """Garbage older than `age`, by artifact; nothing is deleted.

        Raises:
            StorageError: `age` is below `SHORTEST_AGE`; the server refuses or is unreachable.
        """
        if min(age, self._kept_age) < SHORTEST_AGE:
            raise StorageError(
                f"garbage is collected from an age of {SHORTEST_AGE.days} day on: younger objects "
                "may belong to a publication that is under way"
            )
        before = self._clock.now() - age
        listed = listed_below(self._requests, self._bucket, self._below)
        # incomplete uploads of contents
        uploads = [
            upload
            for upload in self._requests.uploads_below(self._bucket, self._below)
            if digest_of_key(upload.key) and upload.begun < before
        ]
        prefixes = _artifact_prefixes([*listed, *(upload.key for upload in uploads)])
        own: dict[str, dict[str, StoredObject]] = {prefix: {} for prefix in sorted(prefixes)}
        for key, stored in listed.items():
            for prefix in map(str, PurePosixPath(key).parents):
                if prefix in own:
                    own[prefix][key.removeprefix(f"{prefix}/")] = stored
        found = [
            self._find_below(prefix, objects, uploads, before) for prefix, objects in own.items()
        ]
        return [garbage for garbage in found if garbage.objects or garbage.uploads or garbage.fault]

    def collect(self, age: timedelta, report: Callable[[str], None]) -> int:
        """Delete garbage older than `age`, and return the bytes of the deleted objects.

        Args:
            age: at least `SHORTEST_AGE`.
            report: takes a line for each artifact that had garbage.

        Raises:
            StorageError: `age` is below `SHORTEST_AGE`; the server refuses or is unreachable.
        """
        num_bytes = 0
        for garbage in self.find(age):
            deleted = self._collect_below(garbage, age) if garbage.objects else {}
            for upload in garbage.uploads:
                self._requests.forget_upload(self._bucket, upload.key, upload.upload_id)
            num_bytes += sum(stored.num_bytes for stored in deleted.values())
            report(
                f"{garbage.uri}: left alone, {garbage.fault}"
                if garbage.fault
                else f"{garbage.uri}: deleted {described(deleted, garbage.uploads)}"
            )
        return num_bytes

    def _find_below(
        self,
        prefix: str,
        listed: Mapping[str, StoredObject],
        uploads: list[Upload],
        before: datetime,
    ) -> Garbage:
        objects = ArtifactObjects(self._requests, self._bucket, prefix)
        below = objects.key(object_name(""))
        begun = [upload for upload in uploads if upload.key.startswith(below)]
        manifest = objects.read_manifest() if MANIFEST_NAME in listed else None
        try:
            found = find_garbage(
                listed,
                manifest,
                before,
                kept_before=self._clock.now() - self._kept_age,
                unpublished=True,
            )
        except ArtifactError as error:
            return Garbage(objects.uri, {}, [], str(error))
        if manifest is None and KEPT_MARK not in listed and (found or begun):
            fault = self._unpublished_fault(prefix, described(found, begun))
            if fault is not None:
                return Garbage(objects.uri, {}, [], fault)
        return Garbage(objects.uri, found, begun)

    def _unpublished_fault(self, prefix: str, what: str) -> str | None:
        """Reason to keep contents that have no manifest; None if they may be deleted."""
        folder, _, name = prefix.rpartition("/")
        if name == _IMAGE_BLOBS:
            # a request of its own, because these files may lie outside of the searched prefix
            for sign in _IMAGE_LAYOUT:
                key = f"{folder}/{sign}".lstrip("/")
                if key in listed_below(self._requests, self._bucket, key):
                    return "blobs of an OCI image layout"
        if self._unpublished:
            return None
        return (
            f"{what} have no manifest: it was lost, the publication was killed, or they "
            "are another program's; --unpublished deletes them"
        )

    def _collect_below(self, garbage: Garbage, age: timedelta) -> dict[str, StoredObject]:
        """Mark the prefix, list it again, and delete. Writers wait while they see the mark."""
        prefix = garbage.uri.removeprefix(f"s3://{self._bucket}/")
        objects = ArtifactObjects(self._requests, self._bucket, prefix)
        deleted: dict[str, StoredObject] = {}
        while True:
            mark = self._marked(objects)
            if mark is None:
                return deleted
            listed = objects.listed()
            deadline = self._clock.now() + _DELETING_FOR
            # the manifest after the listing: a writer that met an older one cannot write its own
            manifest = objects.read_manifest()
            if (manifest is None) != (MANIFEST_NAME not in listed):
                rest: dict[str, StoredObject] = {}
            else:
                now = self._clock.now()
                rest = find_garbage(
                    listed,
                    manifest,
                    now - age,
                    kept_before=now - self._kept_age,
                    unpublished=self._unpublished,
                )
            num_before = len(deleted)
            for name, found in rest.items():
                if not self._delete(objects.key(name), deadline):
                    break
                deleted[name] = found
            objects.write_if(COLLECTING, b"", mark)
            if rest.keys() <= deleted.keys() or len(deleted) == num_before:
                return deleted

    def _marked(self, objects: ArtifactObjects) -> str | None:
        """Mark the prefix as being collected; the mark's ETag, or None if another mark is there.

        A mark is an object of random bytes, which is emptied at the end. It is never deleted,
        because a delete that arrives late would remove the mark of another collector.
        """
        content = secrets.token_bytes(16)
        present = objects.listed().get(COLLECTING)
        alive_from = self._clock.now() - 12 * COLLECTOR_LIFE
        if present is not None and present.num_bytes and present.modified > alive_from:
            return None
        return objects.write_if(COLLECTING, content, present.etag if present else None)

    def _delete(self, key: str, deadline: datetime) -> bool:
        """Delete the object, unless an attempt would start after the deadline; return success."""
        is_late = False

        def request() -> None:
            nonlocal is_late
            is_late = self._clock.now() >= deadline
            if not is_late:
                self._requests.client.remove_object(self._bucket, key)

        self._requests.send_or_none(f"delete s3://{self._bucket}/{key}", request)
        return not is_late


def described(objects: Mapping[str, StoredObject], uploads: list[Upload]) -> str:
    """Garbage in words: "3 objects of 12.5 MB, 1 incomplete upload"."""
    num_bytes = sum(stored.num_bytes for stored in objects.values())
    begun = f", {len(uploads)} incomplete uploads" if uploads else ""
    return f"{len(objects)} objects of {num_bytes / 1e6:.1f} MB{begun}"


def _artifact_prefixes(keys: list[str]) -> set[str]:
    """Prefixes with a manifest, contents, an upload of a content, or the mark of a last use."""
    found: set[str] = set()
    for key in keys:
        folder, _, name = key.rpartition("/")
        if name in (MANIFEST_NAME, KEPT_MARK):
            found.add(folder)
        elif digest_of_key(key):
            found.add(folder.rpartition("/")[0])
    return found - {""}


def open_collector(
    uri: str,
    environment: Mapping[str, str],
    *,
    kept_age: timedelta = KEPT_AGE,
    unpublished: bool = False,
) -> Collector:
    """A garbage collector for everything below `uri`; no request is sent yet.

    Args:
        uri: s3://BUCKET or s3://BUCKET/PREFIX.
        environment: S3 endpoint and credentials, as for `settings.s3_settings`.
        kept_age: time since the last use after which an expiring artifact is deleted.
        unpublished: delete contents without a manifest, too.

    Raises:
        StorageError: `uri` has another form, or there are no credentials.
    """
    bucket, prefix = parsed_bucket(uri)
    requests = S3Requests(s3_settings(environment))
    return Collector(requests, bucket, prefix, kept_age=kept_age, unpublished=unpublished)
