"""Make a backup: the database first, then the objects that it may name, then the record.

MLflow and the stages write files before the row or the manifest that names them. So what is copied
first may name only what is copied after it: the database before all objects, and in a bucket
manifests before contents. Contents that are deleted meanwhile are another matter: a checkpoint that
replaces the one before deletes its contents at once (`storage.kept`). So manifests are looked at
again in the end, and those of artifacts that were replaced are copied anew. Of the database there
is one copy: runs of it that are deleted for good meanwhile (`mlflow gc`) have no files then.

What cannot be copied does not keep the rest from being copied: the record names it, and the backup
is incomplete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from espalier.records import MANIFEST_NAME, RegistryError, StorageAwayError, StorageError
from espalier.registry.backups.database import copy_database
from espalier.registry.backups.globs import compiled
from espalier.registry.backups.record import BackupRecord, DatabaseRecord, ObjectRecord
from espalier.registry.backups.store import BackupStore, scratch_file
from espalier.storage.objects import ObjectTree, StoredObject, at_once

_ATTEMPTS = 3
"""Looks at objects that are replaced while they are read; then they are left out."""
_SHOWN = 5
_UNSTEADY = (
    "each time that it was read it was another than was listed: replaced all the time, or lost. "
    "--exclude leaves it out"
)


class Source:
    """Objects to copy."""

    def __init__(self, tree: ObjectTree, excluded: Sequence[str] = ()) -> None:
        """Name what is to be copied; nothing is requested yet.

        Args:
            tree: bucket, or a part of one.
            excluded: globs of names that are left out, see `globs`.

        Raises:
            StorageError: one is no glob.
        """
        self.tree = tree
        self._excluded = {glob: compiled(glob) for glob in excluded}

    def split(self) -> Listing:
        """Look at what is there, and part it.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        found = Listing({}, {glob: [] for glob in self._excluded})
        for name, stored in self.tree.listed().items():
            glob = self.glob_of(name)
            if glob is None:
                found.wanted[name] = stored
            else:
                found.excluded[glob].append(name)
        return found

    def glob_of(self, name: str) -> str | None:
        """The first glob by which the name is left out; None if there is none."""
        globs = self._excluded.items()
        return next((glob for glob, pattern in globs if pattern.fullmatch(name)), None)


class Listing(NamedTuple):
    """What a source has."""

    wanted: dict[str, StoredObject]
    """By name."""
    excluded: dict[str, list[str]]
    """Glob -> names that it leaves out."""


def create_backup(
    store: BackupStore,
    database: Path | None,
    sources: Sequence[Source],
    *,
    now: datetime,
    say: Callable[[str], None],
) -> BackupRecord:
    """Copy a database and buckets, and record them as one backup.

    What of them cannot be read is left out, and is among the record's `faults`.

    Args:
        store: where the backup goes; its bucket is made if there is none.
        database: MLflow's sqlite file; None where its tables are elsewhere.
        sources: buckets to copy.
        now: in UTC; it names the backup.
        say: takes a line for each part, and for each fault.

    Raises:
        RegistryError: nothing at all can be copied.
        StorageError: the server of the backups refuses; a server is unreachable.
    """
    for source in sources:
        if _overlap(source, store.uri):
            raise StorageError(
                f"{store.uri} lies in {source.tree.uri}, so that each backup would hold the "
                "ones before. Give the backups another bucket, or leave it out by --exclude"
            )
    if store.make_bucket():
        say(f"{store.uri}: made the bucket")
    before = _newest(store, say)
    contents = _Contents(store, before)
    faults: dict[str, str] = {}
    copied = None
    if database is not None:
        try:
            copied = _copied_database(database, contents, say)
        except RegistryError as error:
            faults[str(database)] = str(error)
    objects: dict[str, dict[str, ObjectRecord]] = {}
    excluded: dict[str, dict[str, list[str]]] = {}
    for source in sources:
        uri = source.tree.uri
        known = before.objects.get(uri, {}) if before else {}
        copy = _TreeCopy(source, contents, known)
        objects[uri] = copy.copied()
        excluded[uri] = {glob: names for glob, names in copy.excluded.items() if names}
        faults |= {f"{uri}/{name}".rstrip("/"): why for name, why in copy.faults.items()}
        say(copy.told())
    _say_faults(faults, say)
    if faults and copied is None and not any(objects.values()):
        raise RegistryError(f"nothing can be backed up: {'; '.join(faults.values())}")
    record = BackupRecord(
        created=now,
        database=copied,
        objects=objects,
        excluded={uri: globs for uri, globs in excluded.items() if globs},
        faults=faults,
    ).sealed()
    store.add(record)
    return record


def _say_faults(faults: dict[str, str], say: Callable[[str], None]) -> None:
    for where, why in list(faults.items())[:_SHOWN]:
        say(f"not in the backup: {why if why.startswith(where) else f'{where}: {why}'}")
    if len(faults) > _SHOWN:
        say(f"not in the backup: {len(faults) - _SHOWN} more, see `espalier backup verify`")


def _newest(store: BackupStore, say: Callable[[str], None]) -> BackupRecord | None:
    """The newest record that can be read: it tells what need not be read again."""
    found = store.records(lambda _, why: say(f"a backup is damaged: {why}"))
    return next((record for _, record in found), None)


def _copied_database(path: Path, contents: _Contents, say: Callable[[str], None]) -> DatabaseRecord:
    with scratch_file() as copy:
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


class _SourceRefusedError(Exception):
    """A bucket cannot be listed."""


class _TreeCopy:
    """The copy of one bucket, or of a part of one."""

    def __init__(self, source: Source, contents: _Contents, known: dict[str, ObjectRecord]) -> None:
        self._source, self._contents, self._known = source, contents, known
        self._tree = source.tree
        self.excluded: dict[str, list[str]] = {}
        self.faults: dict[str, str] = {}
        """Names of what could not be copied, and why; the empty name is that of the whole."""
        self._found: dict[str, ObjectRecord] = {}
        self._reasons: dict[str, str] = {}
        self._num_read = 0
        self._sent_before = contents.sent_bytes

    def copied(self) -> dict[str, ObjectRecord]:
        """Copy manifests, then, after another look, all the rest, then what was replaced since.

        Raises:
            StorageError: the server of the backups refuses; a server is unreachable.
        """
        try:
            self._copy_all()
            self._copy_replaced_artifacts()
        except _SourceRefusedError as refused:
            # without another look nobody knows which of the manifests still hold
            self.faults, self._found = {"": str(refused)}, {}
        return dict(sorted(self._found.items()))

    def told(self) -> str:
        """A line of what was done."""
        sent = self._contents.sent_bytes - self._sent_before
        line = (
            f"{self._tree.uri}: {len(self._found)} objects, {self._num_read} of them read, "
            f"{sent / 1e6:.1f} MB sent"
        )
        for glob, names in self.excluded.items():
            line += f"; {len(names)} left out by {glob}"
        return line

    def _copy_all(self) -> None:
        self._copy(manifests=True)
        self._copy(manifests=False)

    def _copy_replaced_artifacts(self) -> None:
        """Copy artifacts anew whose manifest is another by now, and forget manifests that went."""
        for _ in range(_ATTEMPTS):
            if not self._forget_replaced_manifests():
                return
            self._copy_all()
        self.faults |= dict.fromkeys(self._forget_replaced_manifests(), _UNSTEADY)

    def _forget_replaced_manifests(self) -> list[str]:
        """Drop manifests that are not there any more as they were copied; those still there."""
        present = self._listed()
        replaced = [
            name
            for name, record in self._found.items()
            if _is_manifest(name) and present.get(name) != record.stored
        ]
        for name in replaced:
            del self._found[name]
        return [name for name in replaced if name in present]

    def _copy(self, *, manifests: bool) -> None:
        left = self._left(manifests=manifests)
        for _ in range(_ATTEMPTS):
            at_once(partial(self._copy_object, name, stored) for name, stored in left.items())
            if left.keys() <= self._found.keys() | self.faults.keys():
                return
            left = self._left(manifests=manifests)
        self.faults |= {name: self._reasons.get(name, _UNSTEADY) for name in left}

    def _left(self, *, manifests: bool) -> dict[str, StoredObject]:
        """What is there and not copied yet."""
        return {
            name: stored
            for name, stored in self._listed().items()
            if _is_manifest(name) is manifests
            and name not in self._found
            and name not in self.faults
        }

    def _listed(self) -> dict[str, StoredObject]:
        try:
            found = self._source.split()
        except StorageAwayError:
            raise
        except StorageError as error:
            raise _SourceRefusedError(str(error)) from error
        self.excluded = found.excluded
        return found.wanted

    def _copy_object(self, name: str, stored: StoredObject) -> None:
        known = self._known.get(name)
        if (
            known is not None
            and known.stored == stored
            and self._contents.has(known.digest, known.num_bytes)
        ):
            self._found[name] = known
            return
        with scratch_file() as path:
            digest = self._received(name, path, stored)
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

    def _received(self, name: str, path: Path, stored: StoredObject) -> str | None:
        """Its SHA-256; None where it cannot be read, or not as it was listed."""
        self._reasons.pop(name, None)
        try:
            return self._tree.receive(name, path, stored)
        except StorageAwayError as error:
            self._tree.has_bucket()  # raises, unless it is this object alone that is not served
            # minutes were spent on it; MinIO, for one, answers so where a disk has damaged it
            self.faults[name] = f"the server serves others, and not this one: {error}"
        except StorageError as error:
            self._reasons[name] = str(error)
        except OSError as error:
            self._reasons[name] = f"no room in {path.parent} ({error.strerror}); set TMPDIR"
        return None


def _is_manifest(name: str) -> bool:
    return name.rpartition("/")[2] == MANIFEST_NAME


def _overlap(source: Source, uri: str) -> bool:
    """Whether the source holds the backups."""
    inside = f"{uri}/".removeprefix(f"{source.tree.uri}/")
    return inside != f"{uri}/" and source.glob_of(f"{inside}sha256/{'0' * 64}") is None
