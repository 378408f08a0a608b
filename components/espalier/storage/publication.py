"""Publication of an artifact in S3: readers find a whole one, whatever other writers do.

    1. Put the contents that are missing or damaged, each under its SHA-256. Delete nothing.
    2. List them: the size and the ETag of each must be those of the file.
    3. Write the manifest on the condition that the one read before step 1 is still there.

A writer that is killed before step 3 has changed nothing that a reader reads. Of two writers at
once one passes step 3, and the other reads the manifest that won. If that is the same work (stage,
settings, inputs and content), it is as good as its own. Other content is an error, because the
caller would continue with an artifact that it did not make. A publication that starts after another
has ended is no conflict: it replaces the artifact.

Publishing again takes the same steps, so it restores lost or damaged contents.

The collector deletes old contents that no manifest names (`garbage`). A content that is already
there is therefore reused only if the manifest of step 3 names it or if it is young; otherwise it
is put again, and is young from then on.
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
"""Age up to which a content that no manifest names is reused. The collector spares contents of up
to a day, so a publication has the other half day from its last listing on."""
COLLECTOR_LIFE = timedelta(minutes=5)
"""Age of a mark after which its collector counts as killed."""
_ROUNDS = 8
"""Attempts to put and list the contents, and to write the manifest, before an error."""
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
        """Publish, and return the manifest that is published afterwards.

        Raises:
            ArtifactError: a file changed since it was checked.
            StorageError: another writer published other content meanwhile; the server refuses or is
                unreachable.
        """
        replaced = self._objects.read_manifest()
        for _ in range(_ROUNDS):
            known = self._parsed(replaced) if replaced else None
            self._put_contents(frozenset(known.files.values()) if known else frozenset())
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
        """Write this manifest if `replaced` is still the published one; False if it is not."""
        if replaced is not None and replaced.content == self._content:
            return self._objects.read_manifest() == replaced
        etag = replaced.etag if replaced else None
        return self._objects.write_if(MANIFEST_NAME, self._content, etag) is not None

    def _settled(self, found: StoredManifest) -> Manifest:
        """The manifest that another writer published meanwhile, if it is of the same work."""
        if found.content == self._content:
            return self._manifest
        own, other = self._manifest, self._parsed(found)
        if other is not None and (
            (own.producer, own.config_digest, own.inputs, own.content)
            == (other.producer, other.config_digest, other.inputs, other.content)
        ):
            return other
        made = f"stage {other.producer}, {other.created}" if other else "no manifest"
        raise StorageError(
            f"{self._objects.uri}: another writer has published other content while this was under "
            f"way ({made}), and it stays. Let one of them write here; the same command, given "
            "again, replaces it"
        )

    def _put_contents(self, named: Collection[str]) -> None:
        """Put missing and damaged contents until a listing shows all of them."""
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
            f"{self._objects.uri}: files are still missing after several attempts to write them. "
            "Another program deletes or changes objects below this prefix: stop it, and run "
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
            self._compares_etags = False  # a server that encrypts has ETags that are no MD5 sums

    def _listed(self) -> Mapping[str, StoredObject]:
        """The objects below the prefix, at a moment when no collector deletes.

        A listing is in the order of names and the mark is first: a collector that starts after the
        mark was listed finds everything that this writer has put.
        """
        waited, before = timedelta(), None
        while True:
            present = self._objects.listed()
            mark = present.get(COLLECTING)
            if mark is None or not mark.num_bytes or waited > COLLECTOR_LIFE:
                return present
            if self._clock.now() - mark.modified > 12 * COLLECTOR_LIFE:
                return present  # its collector was killed, however far apart the two clocks are
            waited = waited + timedelta(seconds=_POLL_S) if mark == before else timedelta()
            before = mark
            self._clock.sleep(_POLL_S)

    def _parsed(self, stored: StoredManifest) -> Manifest | None:
        """The manifest; None for an invalid one, which is replaced like any other."""
        try:
            return parsed_manifest(stored.content, self._objects.uri)
        except ArtifactError:
            return None

    def _summed(self, path: Path) -> str:
        sums = FileSums.of(path)
        self._files.setdefault(sums.sha256, (path, sums))
        return sums.sha256
