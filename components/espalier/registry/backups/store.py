"""Where backups lie in S3.

PREFIX/sha256/DIGEST        every content once, whichever backups need it
PREFIX/backups/NAME.json    the record of one backup, written last
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from espalier.records import ArtifactError, StorageError
from espalier.registry.backups.record import BackupRecord, DamagedRecordError
from espalier.storage.objects import ObjectTree, StoredObject, at_once, open_tree
from espalier.storage.transfer import FileSums

_CONTENTS, _RECORDS, _SUFFIX = "sha256/", "backups/", ".json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNNAMED_FOR = timedelta(days=1)
"""A content that no record names may be that of a backup which is being made."""
_OTHER_ACCOUNT = "ESPALIER_BACKUP_"
"""Before AWS_...: variables of the server and account that backups are written with."""


class Pruned(NamedTuple):
    """What pruning did."""

    gone: list[str]
    """Names of the backups that went."""
    damaged: dict[str, str]
    """Names of backups whose records cannot be read -> why. What they need is not known, so while
    there are any no content is deleted."""


class BackupStore:
    """The backups below one prefix."""

    def __init__(self, tree: ObjectTree) -> None:
        """Name the store; nothing is requested yet."""
        self._tree = tree
        self.uri = tree.uri

    def make_bucket(self) -> bool:
        """Make the bucket if there is none; whether it was made.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        return self._tree.make_bucket()

    def names(self) -> list[str]:
        """Names of all whole backups, the newest first.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        listed = self._tree.listed(_RECORDS)
        names = (name.removeprefix(_RECORDS) for name in listed)
        found = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(found, reverse=True)

    def record(self, name: str | None = None) -> BackupRecord:
        """The record of a backup; of the newest where no name is given.

        Raises:
            DamagedRecordError: it cannot be read.
            StorageError: there is none; the server refuses or is unreachable.
        """
        wanted = name
        if wanted is None:
            wanted = next(iter(self.names()), None)
            if wanted is None:
                raise StorageError(
                    f"{self.uri}: there is no backup. `espalier backup create` makes one"
                )
        where = f"{_RECORDS}{wanted}{_SUFFIX}"
        stored = self._tree.read(where)
        if stored is None:
            there = ", ".join(self.names()[:10]) or "none"
            raise StorageError(f"{self.uri}: no backup {wanted}. There are: {there}")
        return BackupRecord.parsed(stored.content, f"{self.uri}/{where}")

    def records(
        self, say_damaged: Callable[[str, str], None]
    ) -> Generator[tuple[str, BackupRecord]]:
        """Name and record of every backup whose record can be read, the newest first.

        Each is read as it is asked for.

        Args:
            say_damaged: takes the name of a record that cannot be read, and why.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        for name in self.names():
            try:
                record = self.record(name)
            except DamagedRecordError as error:
                say_damaged(name, str(error))
            else:
                yield name, record

    def contents(self) -> dict[str, StoredObject]:
        """Every content that is there, by its SHA-256.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        listed = self._tree.listed(_CONTENTS)
        named = {name.removeprefix(_CONTENTS): stored for name, stored in listed.items()}
        return {digest: stored for digest, stored in named.items() if _DIGEST.fullmatch(digest)}

    def put(self, digest: str, path: Path) -> None:
        """Upload a content.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        self._tree.put(_CONTENTS + digest, path, FileSums.of(path))

    def fetch(self, digest: str, path: Path) -> None:
        """Download a content to `path`, and check its bytes.

        Raises:
            StorageError: it is lost or damaged; the server refuses or is unreachable.
        """
        try:
            found = self._tree.fetch(_CONTENTS + digest, path, digest)
        except ArtifactError as error:
            raise StorageError(
                f"{self.uri}/{_CONTENTS}{digest}: damaged, its bytes are not those that were "
                "backed up. Delete it, so that the next backup sends it again, and restore an "
                "earlier or a later backup"
            ) from error
        if not found:
            raise StorageError(
                f"{self.uri}/{_CONTENTS}{digest}: lost. Restore an earlier or a later backup"
            )

    def add(self, record: BackupRecord) -> None:
        """Write a record; from then on the backup counts.

        Raises:
            StorageError: a content that it names is not there; the server refuses or is
                unreachable.
        """
        present = self.contents()
        if lost := record.digests - present.keys():
            raise StorageError(
                f"{self.uri}: {len(lost)} contents went while the backup was made, such as "
                f"{min(lost)}: something else deletes there. Run the same command again"
            )
        content = record.model_dump_json().encode()
        self._tree.write_if(f"{_RECORDS}{record.name}{_SUFFIX}", content, etag=None)

    def prune(self, keep: int, now: datetime) -> Pruned:
        """Delete all but the newest backups, and contents that no backup needs.

        Incomplete backups take no complete one's place: so many of them stay as well, as far as
        they are newer than the oldest complete one that stays. A backup whose record is damaged
        stays until it is older than that.

        Contents go a day after the last record that named them, because a backup that is being
        made may use them: those of the records that go now are left to the next pruning.

        Args:
            keep: complete backups that stay, at least one.
            now: in UTC.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        keep = max(1, keep)
        needed, complete, incomplete = set[str](), list[str](), list[str]()
        damaged: dict[str, str] = {}
        for name, record in self.records(damaged.__setitem__):
            needed |= record.digests
            (complete if record.is_complete else incomplete).append(name)
        unneeded = [
            digest
            for digest, stored in self.contents().items()
            if digest not in needed and stored.modified < now - _UNNAMED_FOR and not damaged
        ]
        at_once(partial(self._tree.delete, _CONTENTS + digest) for digest in unneeded)
        oldest = complete[keep - 1] if len(complete) >= keep else ""
        staying = {*complete[:keep], *incomplete[:keep], *damaged}
        names = sorted([*complete, *incomplete, *damaged], reverse=True)
        gone = [name for name in names if name not in staying or name < oldest]
        for name in gone:
            self._tree.delete(f"{_RECORDS}{name}{_SUFFIX}")
        return Pruned(gone, {name: why for name, why in damaged.items() if name not in gone})

    def verify(self, record: BackupRecord, say: Callable[[str], None]) -> list[str]:
        """Read every content of a backup.

        Args:
            record: of the backup.
            say: takes a line for each fault.

        Returns:
            Digests of contents that are lost or damaged.

        Raises:
            StorageError: the server refuses or is unreachable.
        """
        sizes = _sizes(record)
        present, faulty = self.contents(), list[str]()

        def check(digest: str) -> None:
            stored = present.get(digest)
            if stored is None or stored.num_bytes != sizes[digest]:
                faulty.append(digest)
                say(f"{self.uri}/{_CONTENTS}{digest}: {'lost' if stored is None else 'cut'}")
                return
            with scratch_file() as path:
                found = self._tree.receive(_CONTENTS + digest, path, stored)
            if found != digest:
                faulty.append(digest)
                say(f"{self.uri}/{_CONTENTS}{digest}: damaged")

        at_once(partial(check, digest) for digest in sorted(sizes))
        return sorted(faulty)


@contextmanager
def scratch_file() -> Generator[Path]:
    """A name for a new file, which goes with the block.

    Raises:
        StorageError: there is no room for it.
    """
    try:
        with TemporaryDirectory(prefix="espalier-backup-") as folder:
            yield Path(folder, "content")
    except OSError as error:
        raise StorageError(
            f"{gettempdir()}: {error.strerror or error}. There is to be room for the four largest "
            "objects: free some, or set TMPDIR to another folder"
        ) from error


def _sizes(record: BackupRecord) -> dict[str, int]:
    entries: Iterable[Mapping[str, int]] = (
        {entry.digest: entry.num_bytes for entry in objects.values()}
        for objects in record.objects.values()
    )
    sizes = {digest: size for part in entries for digest, size in part.items()}
    if record.database is not None:
        sizes[record.database.digest] = record.database.num_bytes
    return sizes


def open_store(uri: str, environment: Mapping[str, str]) -> BackupStore:
    """The backups below `uri`; nothing is requested yet.

    Args:
        uri: s3://BUCKET/PREFIX.
        environment: S3 endpoint and credentials (`storage.settings.s3_settings`); a variable with
            ESPALIER_BACKUP_ before its name, such as ESPALIER_BACKUP_AWS_ACCESS_KEY_ID, counts here
            instead, so that backups may lie on another server, under an account of their own.

    Raises:
        StorageError: not such a URI, or no credentials.
    """
    own = {
        name.removeprefix(_OTHER_ACCOUNT): value
        for name, value in environment.items()
        if name.startswith(f"{_OTHER_ACCOUNT}AWS_") and value
    }
    shared = dict(environment)
    if "AWS_ACCESS_KEY_ID" in own:
        shared.pop("AWS_SESSION_TOKEN", None)  # it belongs to the other keys
    return BackupStore(open_tree(uri, {**shared, **own}))


def utc_now() -> datetime:
    """The moment, in UTC."""
    return datetime.now(UTC)
