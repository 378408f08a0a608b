"""Publish an artifact in S3 so that readers, beside any number of writers, find a whole one.

    1. Put the contents that are missing or damaged, each under its SHA-256. Nothing is deleted.
    2. List them: size and ETag of every one have to be those of the file.
    3. Write the manifest on the condition that the one seen before 1 is still there.

A writer that is killed before 3 has changed nothing that a reader sees. Of two writers at once one
passes 3; the other looks at what won. The same work (stage, settings, inputs and content) is as
good as its own; other content is an error, because the caller would go on with an artifact that it
did not make. To publish after another writer has ended is no conflict: it replaces.

Publishing again goes through the same steps, so it puts back what was lost or damaged.

Contents that no manifest names are deleted by age (`garbage`). A content that was there before is
therefore taken for granted only if the manifest of condition 3 names it, or if it is young; else it
is put again, and becomes young.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

from espalier.records import MANIFEST_NAME, ArtifactError, Manifest, StorageError, open_artifact
from espalier.storage.layout import COLLECTING, object_name, parsed_manifest
from espalier.storage.objects import ArtifactObjects, Clock, StoredManifest, StoredObject, at_once
from espalier.storage.transfer import FileSums

REUSED_WITHIN = timedelta(hours=12)
"""Age up to which a content that no manifest names is reused; the collector waits for a day at
least, so a publication may take the other half of it from its last listing on."""
COLLECTOR_LIFE = timedelta(minutes=5)
"""Age from which on a collector's mark is that of a killed one."""
_ROUNDS = 8
"""How often contents are put and listed, and the manifest tried, before that counts as an error."""
_POLL_S = 1.0


class Publication:
    """One writer's publication of one folder."""

    def __init__(self, objects: ArtifactObjects, directory: Path, clock: Clock) -> None:
        """Read every file once and check it against its manifest.

        Raises:
            ArtifactError: `directory` is not a complete artifact, or has names that cannot be
                published.
        """
        self._objects, self._clock = objects, clock
        self._files: dict[str, tuple[Path, FileSums]] = {}
        open_artifact(directory, digest=self._summed)
        path = directory / MANIFEST_NAME
        self._content = path.read_bytes()
        self._manifest = parsed_manifest(self._content, str(path))
        self._compares_etags = True

    def publish(self) -> Manifest:
        """Publish, and return the manifest that is there then.

        Raises:
            ArtifactError: a file changed since it was checked.
            StorageError: another writer has published other content meanwhile; the server refuses
                or is unreachable.
        """
        replaced = self._objects.read_manifest()
        for _ in range(_ROUNDS):
            self._put_contents(self._named_by(replaced))
            if self._write(replaced):
                return self._manifest
            found = self._objects.read_manifest()
            if found is not None and found != replaced:
                return self._settled(found)
            replaced = found
        raise StorageError(
            f"{self._objects.uri}: its manifest could not be written, though nobody else wrote "
            "one. Does the server support conditional writes (If-None-Match, If-Match)?"
        )

    def _write(self, replaced: StoredManifest | None) -> bool:
        """Make this manifest the artifact's, if `replaced` still is; whether that was so."""
        if replaced is not None and replaced.content == self._content:
            return self._objects.read_manifest() == replaced
        etag = replaced.etag if replaced else None
        return self._objects.write_if(MANIFEST_NAME, self._content, etag) is not None

    def _settled(self, found: StoredManifest) -> Manifest:
        """The manifest that was written while this publication was under way, if it will do."""
        if found.content == self._content:
            return self._manifest
        other = self._parsed(found)
        if other is not None and _are_same_work(other, self._manifest):
            return other
        made = f"stage {other.producer}, {other.created}" if other else "no manifest"
        raise StorageError(
            f"{self._objects.uri}: another writer has published other content while this was under "
            f"way ({made}), and it stays. Let one of them write here; the same command, given "
            "again, replaces it"
        )

    def _put_contents(self, named: Collection[str]) -> None:
        """Put what is missing or damaged until a listing shows that all is there."""
        for _ in range(_ROUNDS):
            present = self._listed()
            young_from = self._clock.now() - REUSED_WITHIN
            missing: list[str] = []
            for digest, (_, sums) in self._files.items():
                found = present.get(object_name(digest))
                is_kept = found is not None and (digest in named or found.modified > young_from)
                if found is None or not is_kept or not self._is_whole(found, sums):
                    missing.append(digest)
            if not missing:
                return
            at_once(partial(self._put, digest) for digest in missing)
        raise StorageError(
            f"{self._objects.uri}: files are not there although they were written, again and "
            "again. Another program deletes or changes objects below this prefix: stop it, and run "
            "the same command again"
        )

    def _is_whole(self, found: StoredObject, sums: FileSums) -> bool:
        if found.num_bytes != sums.num_bytes:
            return False
        return found.etag == sums.etag or not self._compares_etags

    def _put(self, digest: str) -> None:
        path, sums = self._files[digest]
        etag = self._objects.put(object_name(digest), path, sums)
        if etag and etag != sums.etag:
            self._compares_etags = False  # the server encrypts, and its ETags are no sums

    def _listed(self) -> Mapping[str, StoredObject]:
        """What is there, at a moment at which no collector is deleting.

        Listings are in order and the mark comes first: a collector that began after it was listed
        sees everything that this writer has put before.
        """
        waited, before = timedelta(), None
        while True:
            present = self._objects.listed()
            mark = present.get(COLLECTING)
            if mark is None or not mark.num_bytes or waited > COLLECTOR_LIFE:
                return present
            if self._clock.now() - mark.modified > 12 * COLLECTOR_LIFE:
                return present  # a killed one's, however far the two clocks are apart
            waited = waited + timedelta(seconds=_POLL_S) if mark == before else timedelta()
            before = mark
            self._clock.sleep(_POLL_S)

    def _named_by(self, manifest: StoredManifest | None) -> Collection[str]:
        known = self._parsed(manifest) if manifest else None
        return frozenset(known.files.values()) if known else frozenset()

    def _parsed(self, stored: StoredManifest) -> Manifest | None:
        """None for something that is no manifest: it is replaced like any other."""
        try:
            return parsed_manifest(stored.content, self._objects.uri)
        except ArtifactError:
            return None

    def _summed(self, path: Path) -> str:
        sums = FileSums.of(path)
        self._files.setdefault(sums.sha256, (path, sums))
        return sums.sha256


def _are_same_work(one: Manifest, other: Manifest) -> bool:
    """Whether both were made by the same stage from the same inputs, with the same content."""
    return (one.producer, one.config_digest, one.inputs, one.content) == (
        other.producer, other.config_digest, other.inputs, other.content,
    )  # fmt: skip
