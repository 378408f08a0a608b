"""Deletes what no manifest names in S3: contents of replaced artifacts, and of killed publications.

by hand         espalier data collect s3://bucket/runs --dry-run
on a cluster    the CronJob espalier-artifact-gc of `k8s/`

What belongs to an artifact lies below its prefix (`layout`), so artifacts are looked at one by one.
An object is garbage once it and the manifest beside it are older than the age asked for: until then
a reader of the former manifest may still be reading, or a writer of the next one writing.

Contents without a manifest are deleted only on demand: one lost object may be all that an artifact
lacks, and other programs name objects by their SHA-256 as well.

What is kept for a time (`kept`: outputs that later runs may take, checkpoints) is deleted whole,
when all of it, with the mark of its last use, is older than an age of its own.
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
"""Since its last use, of what is kept for later runs; a month lets a monthly run find its data."""
_DELETING_FOR = timedelta(minutes=1)
"""How long a collector deletes on the strength of one listing. With the time-out of a request it
has ended long before `COLLECTOR_LIFE`, when writers stop waiting for it."""
_IMAGE_BLOBS, _IMAGE_LAYOUT = "blobs", ("oci-layout", "index.json")
"""Where an OCI image layout has its contents, and what lies beside that folder."""


class Garbage(NamedTuple):
    """What may be deleted below one artifact's prefix."""

    uri: str
    objects: dict[str, StoredObject]
    """By their names below the prefix."""
    uploads: list[Upload]
    """Incomplete ones."""
    fault: str | None = None
    """Why the artifact is left alone, where it is."""


def find_garbage(
    listed: Mapping[str, StoredObject],
    manifest: StoredManifest | None,
    before: datetime,
    *,
    kept_before: datetime,
    unpublished: bool = False,
) -> dict[str, StoredObject]:
    """Objects below an artifact's prefix that may be deleted, by their names.

    Without a manifest these are none, or contents alone where `unpublished` is asked for: whatever
    else lies there may be anybody's. Beside a manifest these are all files that it does not name,
    because a prefix belongs to one artifact; a folder inside of it that has a manifest of its own
    is left alone. Beside a mark of being kept they are all objects, in the order in which to delete
    them, once none is young.

    Args:
        listed: objects by their names below the prefix.
        manifest: of the artifact; None if there is none.
        before: what is younger is kept.
        kept_before: of what has the mark: whatever was used since is kept.
        unpublished: without a manifest, contents may be deleted too.

    Raises:
        ArtifactError: the manifest does not parse, so nobody knows what it names.
    """
    if KEPT_MARK in listed:
        names = in_order_of_deletion(listed)
        if all(listed[name].modified < kept_before for name in names):
            return {name: listed[name] for name in names}
        unpublished = True  # nobody else's objects have the mark beside them
    if manifest is None and not unpublished:
        return {}
    kept = {MANIFEST_NAME, COLLECTING, KEPT_MARK}
    if manifest is not None:
        if listed[MANIFEST_NAME].modified >= before:
            return {}
        for name, digest in parsed_manifest(manifest.content, MANIFEST_NAME).files.items():
            kept.add(object_name(digest))
            if object_name(digest) not in listed:
                kept.add(name)  # as Kubeflow's launcher writes
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
    """Finds and collects garbage below s3://bucket/prefix."""

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
        """Name what to look at.

        Args:
            requests: of the server.
            bucket: to look into.
            prefix: keys below it alone are looked at; "" is the whole bucket.
            clock: for the ages of objects; None is this machine's.
            kept_age: since its last use, of what is kept for later runs; at least `SHORTEST_AGE`.
            unpublished: delete contents without a manifest, too.
        """
        self._requests, self._bucket = requests, bucket
        self._below = f"{prefix}/" if prefix else ""
        self._clock = clock or Clock()
        self._kept_age, self._unpublished = kept_age, unpublished

    def find(self, age: timedelta) -> list[Garbage]:
        """What is garbage and older than `age`, artifact by artifact; nothing is deleted.

        Raises:
            StorageError: too young an age; the server refuses or is unreachable.
        """
        if min(age, self._kept_age) < SHORTEST_AGE:
            raise StorageError(
                f"garbage is collected from an age of {SHORTEST_AGE.days} day on: what is younger "
                "may belong to a publication that is under way"
            )
        before = self._clock.now() - age
        listed = listed_below(self._requests, self._bucket, self._below)
        uploads = self._old_uploads(before)
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
        """Delete what is garbage and older than `age`; returns the bytes of the objects deleted.

        Args:
            age: at least `SHORTEST_AGE`.
            report: takes a line for each artifact that had garbage.

        Raises:
            StorageError: too young an age; the server refuses or is unreachable.
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
        """Why contents that have no manifest are left alone; None where they are not."""
        folder, _, name = prefix.rpartition("/")
        if name == _IMAGE_BLOBS:
            # listed here, because what lies beside may not be below the prefix that is looked at
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
        """Mark the prefix, look again, and delete; see `publication` for what writers do then."""
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
        """Mark the prefix as being collected; the mark's ETag, or None where it is marked already.

        A mark is an object with bytes that no other mark has, and empty when it is over. It is
        never deleted, for a delete that arrives late would take away another collector's.
        """
        content = secrets.token_bytes(16)
        present = objects.listed().get(COLLECTING)
        alive_from = self._clock.now() - 12 * COLLECTOR_LIFE
        if present is not None and present.num_bytes and present.modified > alive_from:
            return None
        return objects.write_if(COLLECTING, content, present.etag if present else None)

    def _delete(self, key: str, deadline: datetime) -> bool:
        """Delete the object unless it is too late, also for trying again; whether it was done."""
        is_late = False

        def request() -> None:
            nonlocal is_late
            is_late = self._clock.now() >= deadline
            if not is_late:
                self._requests.client.remove_object(self._bucket, key)

        self._requests.send_or_none(f"delete s3://{self._bucket}/{key}", request)
        return not is_late

    def _old_uploads(self, before: datetime) -> list[Upload]:
        """Incomplete uploads of contents that were begun before."""
        return [
            upload
            for upload in self._requests.uploads_below(self._bucket, self._below)
            if digest_of_key(upload.key) and upload.begun < before
        ]


def described(objects: Mapping[str, StoredObject], uploads: list[Upload]) -> str:
    """Garbage in words: "3 objects of 12.5 MB, 1 incomplete upload"."""
    num_bytes = sum(stored.num_bytes for stored in objects.values())
    begun = f", {len(uploads)} incomplete uploads" if uploads else ""
    return f"{len(objects)} objects of {num_bytes / 1e6:.1f} MB{begun}"


def _artifact_prefixes(keys: list[str]) -> set[str]:
    """Prefixes that have a manifest, contents, an upload of one, or the mark of being kept."""
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
    """The collector of what lies below `uri`; nothing is requested yet.

    Args:
        uri: s3://BUCKET or s3://BUCKET/PREFIX.
        environment: S3 endpoint and credentials, see `settings.s3_settings`.
        kept_age: since its last use, of what is kept for later runs.
        unpublished: delete contents without a manifest, too.

    Raises:
        StorageError: not such a URI, or no credentials.
    """
    bucket, prefix = parsed_bucket(uri)
    requests = S3Requests(s3_settings(environment))
    return Collector(requests, bucket, prefix, kept_age=kept_age, unpublished=unpublished)
