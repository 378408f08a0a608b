"""Make a backup: the database first, then the objects that it may name, then the record.

MLflow and the stages write files before the row or the manifest that names them, and delete in the
other order. So what is copied first may name only what is copied after it: the database before all
objects, and in a bucket manifests before contents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from espalier.records import MANIFEST_NAME, StorageError
from espalier.registry.backups.database import copy_database
from espalier.registry.backups.record import BackupRecord, DatabaseRecord, ObjectRecord
from espalier.registry.backups.store import BackupStore
from espalier.storage.objects import StoredObject, at_once
from espalier.storage.tree import ObjectTree

_ATTEMPTS = 3
"""Looks at objects that are replaced while they are read; then they are left out."""


class Source(NamedTuple):
    """Objects to copy."""

    tree: ObjectTree
    excluded: tuple[str, ...] = ()
    """Beginnings of names that are left out."""

    def listed(self) -> dict[str, StoredObject]:
        """What is there and not left out, by name."""
        found = self.tree.listed()
        return {name: kept for name, kept in found.items() if not name.startswith(self.excluded)}


def create_backup(
    store: BackupStore,
    database: Path | None,
    sources: Sequence[Source],
    *,
    now: datetime,
    say: Callable[[str], None],
) -> BackupRecord:
    """Copy a database and buckets, and record them as one backup.

    Args:
        store: where the backup goes; its bucket is made if there is none.
        database: MLflow's sqlite file; None where its tables are elsewhere.
        sources: buckets to copy.
        now: in UTC; it names the backup.
        say: takes a line for each part.

    Raises:
        RegistryError: the database cannot be copied.
        StorageError: a server refuses or is unreachable.
    """
    for source in sources:
        if _overlap(source, store.uri):
            raise StorageError(
                f"{store.uri} lies in {source.tree.uri}, so that each backup would hold the "
                "ones before. Give --to another bucket, or leave it out by --exclude"
            )
    if store.make_bucket():
        say(f"{store.uri}: made the bucket")
    before = _newest(store, say)
    contents = _Contents(store, before)
    copied = None if database is None else _copied_database(database, contents, say)
    objects: dict[str, dict[str, ObjectRecord]] = {}
    for source in sources:
        known = before.objects.get(source.tree.uri, {}) if before else {}
        copy = _TreeCopy(source.tree, contents, known)
        objects[source.tree.uri] = copy.copied(source)
        say(copy.told())
    record = BackupRecord.sealed(now, copied, objects)
    store.add(record)
    return record


def _newest(store: BackupStore, say: Callable[[str], None]) -> BackupRecord | None:
    names = store.names()
    if not names:
        return None
    try:
        return store.record(names[0])
    except StorageError as error:
        say(f"every object is read anew: {error}")
        return None


def _copied_database(path: Path, contents: _Contents, say: Callable[[str], None]) -> DatabaseRecord:
    with TemporaryDirectory(prefix="espalier-backup-") as folder:
        copy = Path(folder, "database")
        record = copy_database(path, copy)
        contents.add(record.digest, copy)
    say(f"{path}: {record.num_bytes / 1e6:.1f} MB, {record.runs} runs, {record.versions} versions")
    return record


class _Contents:
    """Contents of the store, as far as they are known to stay there."""

    def __init__(self, store: BackupStore, before: BackupRecord | None) -> None:
        self._store = store
        named = before.digests if before else set()
        # what no record names may be deleted at any time, and is sent again
        self._sizes = {
            digest: stored.num_bytes
            for digest, stored in store.contents().items()
            if digest in named
        }
        self._lock = threading.Lock()
        self.sent_bytes = 0

    def has(self, digest: str, num_bytes: int) -> bool:
        """Whether this content need not be sent."""
        return self._sizes.get(digest) == num_bytes

    def add(self, digest: str, path: Path) -> None:
        """Send a content that is not there."""
        num_bytes = path.stat().st_size
        if self.has(digest, num_bytes):
            return
        self._store.put(digest, path)
        with self._lock:
            self._sizes[digest] = num_bytes
            self.sent_bytes += num_bytes


class _TreeCopy:
    """The copy of one bucket, or of a part of one."""

    def __init__(
        self, tree: ObjectTree, contents: _Contents, known: dict[str, ObjectRecord]
    ) -> None:
        self._tree, self._contents, self._known = tree, contents, known
        self._found: dict[str, ObjectRecord] = {}
        self._num_read = 0
        self._left_out: list[str] = []
        self._sent_before = contents.sent_bytes

    def copied(self, source: Source) -> dict[str, ObjectRecord]:
        """Copy manifests, and then, after another look, all the rest."""
        self._copy(source, manifests=True)
        self._copy(source, manifests=False)
        return dict(sorted(self._found.items()))

    def told(self) -> str:
        """A line of what was done."""
        sent = self._contents.sent_bytes - self._sent_before
        line = (
            f"{self._tree.uri}: {len(self._found)} objects, {self._num_read} of them read, "
            f"{sent / 1e6:.1f} MB sent"
        )
        if self._left_out:
            line += f"; {len(self._left_out)} left out, replaced again and again while they "
            line += f"were read, such as {min(self._left_out)}"
        return line

    def _copy(self, source: Source, *, manifests: bool) -> None:
        left = self._listed(source, manifests=manifests)
        for _ in range(_ATTEMPTS):
            at_once(partial(self._copy_object, name, stored) for name, stored in left.items())
            if left.keys() <= self._found.keys():
                return
            left = self._listed(source, manifests=manifests)
        self._left_out += left

    def _listed(self, source: Source, *, manifests: bool) -> dict[str, StoredObject]:
        """What is there and not copied yet."""
        return {
            name: stored
            for name, stored in source.listed().items()
            if _is_manifest(name) is manifests and name not in self._found
        }

    def _copy_object(self, name: str, stored: StoredObject) -> None:
        known = self._known.get(name)
        if (
            known is not None
            and (known.num_bytes, known.etag, known.modified) == tuple(stored)
            and self._contents.has(known.digest, known.num_bytes)
        ):
            self._found[name] = known
            return
        with TemporaryDirectory(prefix="espalier-backup-") as folder:
            path = Path(folder, "content")
            digest = self._tree.receive(name, path, stored)
            if digest is None:
                return  # the next look finds what is there now, if anything
            self._contents.add(digest, path)
        self._num_read += 1
        self._found[name] = ObjectRecord(
            digest=digest,
            num_bytes=stored.num_bytes,
            etag=stored.etag,
            modified=stored.modified,
        )


def _is_manifest(name: str) -> bool:
    return name.rpartition("/")[2] == MANIFEST_NAME


def _overlap(source: Source, uri: str) -> bool:
    inside = f"{uri}/".removeprefix(f"{source.tree.uri}/")
    return inside != f"{uri}/" and not inside.startswith(source.excluded)
