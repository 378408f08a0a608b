"""Put a backup in its place: everything is looked at first, objects are written, the database last.

Each write asks the server that the object be as it was looked at, so that nothing is overwritten
which was published since.

Nothing is deleted: objects that the backup does not have stay, and the former database is kept
beside the new one. A restore that was killed is completed by the same command.
"""

from __future__ import annotations

import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from espalier.records import RegistryError, StorageError
from espalier.registry.backups.database import newer_than, replace_database, state_of
from espalier.registry.backups.record import BackupRecord, ObjectRecord
from espalier.registry.backups.store import BackupStore, scratch_file
from espalier.registry.connection import shown
from espalier.storage.objects import ObjectTree, StoredObject, at_once

_SHOWN = 5
_PROBE_S = 3.0


class Restored(NamedTuple):
    """What a restore has done."""

    objects: int
    num_bytes: int
    made_buckets: list[str]
    kept_database: Path | None
    """Where the former database is; None where there was none, or none is restored."""


class RestorePlan:
    """What of a backup is missing in its places, and what newer things stand in its way."""

    def __init__(
        self,
        store: BackupStore,
        record: BackupRecord,
        database: Path | None,
        trees: Mapping[str, ObjectTree],
        only: Sequence[str] = (),
    ) -> None:
        """Look at everything, and write nothing.

        Args:
            store: of the backup.
            record: of the backup.
            database: file for MLflow's database; None restores none.
            trees: for each URI of the record, where its objects go.
            only: s3:// addresses; objects that lie at or below none of them are left alone.

        Raises:
            RegistryError: a database is asked for, and the backup has none; it has nothing of
                `only`.
            StorageError: a content is lost; a server refuses or is unreachable.
        """
        if database is not None and record.database is None:
            raise RegistryError(
                f"{store.uri}: the backup {record.name} has no database. Name one that has "
                "(`espalier backup list`); where none has, leave out --database, and restore "
                "MLflow's tables with their server's own tools"
            )
        objects = _selected(record, only)
        needed = {entry.digest for entries in objects.values() for entry in entries.values()}
        if database is not None and record.database is not None:
            needed.add(record.database.digest)
        _expect_contents(store, record, needed)
        self.record = record
        self._store, self._database = store, database
        self._database_state = None if database is None else state_of(database)
        self._parts = {
            uri: _TreeRestore(store, trees[uri], entries) for uri, entries in objects.items()
        }
        for part in self._parts.values():
            part.compare()

    @property
    def missing(self) -> dict[str, int]:
        """Objects that are to be written: s3:// address -> bytes."""
        return {
            f"{uri}/{name}": entry.num_bytes
            for uri, part in self._parts.items()
            for name, entry in part.missing.items()
        }

    @property
    def num_unchanged(self) -> int:
        """Objects that are there as the backup has them."""
        return sum(part.num_unchanged for part in self._parts.values())

    def newer(self) -> list[str]:
        """What is newer than the backup and would be lost, in words."""
        found = [
            f"{uri}/{name} was written after the backup, with other bytes"
            for uri, part in self._parts.items()
            for name in part.newer(self.record.created)
        ]
        if self._database is not None and self.record.database is not None:
            why = newer_than(self._database, self.record.database)
            found = [why, *found] if why else found
        return found

    def expect_nothing_newer(self) -> None:
        """Refuse to lose what is newer.

        Raises:
            RegistryError: something is newer than the backup.
        """
        if newer := self.newer():
            raise RegistryError(
                f"the backup {self.record.name} is older than what is there: "
                f"{_first(newer, '; ')}. Restore a later backup, or repeat the command "
                "with --overwrite-newer, which keeps the present database beside the restored one"
            )

    def carry_out(self, now: datetime) -> Restored:
        """Write the objects, and then the database.

        Nothing is overwritten that came after the plan was made. Where that concerns an object, all
        other objects are written, and not the database, which names objects.

        Args:
            now: in UTC; it names the former database.

        Raises:
            RegistryError: something was written meanwhile; the database is in use, or cannot be
                written.
            StorageError: a content is damaged; a server refuses or is unreachable.
        """
        missing, kept = self.missing, None
        made = [uri for uri, part in self._parts.items() if part.make_bucket()]
        for part in self._parts.values():
            part.write()
        self._expect_no_race_lost()
        if self._database is not None and self.record.database is not None:
            with scratch_file() as copy:
                self._store.fetch(self.record.database.digest, copy)
                if state_of(self._database) != self._database_state:
                    raise RegistryError(
                        f"{self._database} was written while the objects were restored, and stays "
                        "as it is. Stop MLflow, and repeat the command"
                    )
                kept = replace_database(self._database, copy, now)
        return Restored(len(missing), sum(missing.values()), made, kept)

    def _expect_no_race_lost(self) -> None:
        lost = sorted(
            f"{uri}/{name}" for uri, part in self._parts.items() for name in part.overtaken
        )
        if not lost:
            return
        is_one = len(lost) == 1
        database = "" if self._database is None else ", but not the database, which names them"
        raise RegistryError(
            f"{len(lost)} {'object was' if is_one else 'objects were'} written by others while the "
            f"backup was restored, and {'stays' if is_one else 'stay'} as written: "
            f"{_first(lost, ', ')}. All others are restored{database}. Stop what "
            "writes there, and repeat the command: it looks at everything again"
        )


def _first(found: Sequence[str], separator: str) -> str:
    """The first of them, and how many more there are."""
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return separator.join([*found[:_SHOWN], *more])


def expect_no_server(uri: str | None) -> None:
    """Refuse to replace the database of a server that is not known to be stopped.

    Args:
        uri: MLFLOW_TRACKING_URI; None and files are not asked.

    Raises:
        RegistryError: it answers, or its connection is neither refused nor to an unknown host.
    """
    if uri is None or not uri.startswith(("http://", "https://")):
        return
    found = "answers"
    try:
        with urllib.request.urlopen(uri, timeout=_PROBE_S):
            pass
    except urllib.error.HTTPError as answer:
        answer.close()  # an answer all the same
    except ValueError:
        return
    except (OSError, http.client.HTTPException) as error:
        # urllib wraps what connecting met; what comes after it, such as silence, is itself
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if _is_nobody(reason):
            return
        found = f"may be running ({type(reason).__name__}: {reason})"
    raise RegistryError(
        f"MLflow at {shown(uri)} {found}, and its database cannot be replaced under it. Stop it "
        "(kubectl scale deployment/espalier-mlflow --replicas=0), or unset MLFLOW_TRACKING_URI "
        "where it is stopped or another's"
    )


def _is_nobody(met: object) -> bool:
    """Whether a connection met what it meets where no server is."""
    if isinstance(met, socket.gaierror):
        return met.errno != socket.EAI_AGAIN  # a name server that is away knows nothing of it
    return isinstance(met, ConnectionRefusedError)


def _selected(record: BackupRecord, only: Sequence[str]) -> dict[str, Mapping[str, ObjectRecord]]:
    """What of the record lies at or below one of the addresses; all if there are none."""
    if not only:
        return dict(record.objects)
    wanted = {address.rstrip("/"): f"{address.rstrip('/')}/" for address in only}
    found: dict[str, Mapping[str, ObjectRecord]] = {}
    met = set[str]()
    for uri, entries in record.objects.items():
        chosen: dict[str, ObjectRecord] = {}
        for name, entry in entries.items():
            below = [a for a, start in wanted.items() if f"{uri}/{name}/".startswith(start)]
            if below:
                chosen[name] = entry
                met.update(below)
        if chosen:
            found[uri] = chosen
    if strange := sorted(wanted.keys() - met):
        raise RegistryError(
            f"the backup {record.name} has nothing of {strange[0]}. It has "
            f"{', '.join(sorted(record.objects)) or 'no objects'}, and what lies below"
        )
    return found


def _expect_contents(store: BackupStore, record: BackupRecord, needed: set[str]) -> None:
    """Raise StorageError if a content is not there, before anything is written."""
    if lost := needed - store.contents().keys():
        raise StorageError(
            f"{store.uri}: {len(lost)} contents of the backup {record.name} are lost, such as "
            f"{min(lost)}. Restore another: `espalier backup list` shows them"
        )


class _TreeRestore:
    """One bucket, or a part of one, and what of the backup it lacks."""

    def __init__(
        self, store: BackupStore, tree: ObjectTree, entries: Mapping[str, ObjectRecord]
    ) -> None:
        self._store, self._tree, self._entries = store, tree, entries
        self.missing: dict[str, ObjectRecord] = {}
        self._others: dict[str, StoredObject] = {}
        self.num_unchanged = 0
        self.overtaken: list[str] = []
        """Names of objects that others wrote after they were compared."""

    def compare(self) -> None:
        """Find what is missing, and what is there with other bytes."""
        present = self._tree.listed() if self._tree.has_bucket() else {}
        checks: list[Callable[[], None]] = []
        for name, entry in self._entries.items():
            stored = present.get(name)
            if stored is None:
                self.missing[name] = entry
            elif (stored.etag, stored.num_bytes) == (entry.etag, entry.num_bytes):
                self.num_unchanged += 1
            else:
                checks.append(partial(self._compare_bytes, name, entry, stored))
        at_once(checks)

    def newer(self, moment: datetime) -> list[str]:
        """Names of objects with other bytes that were written after `moment`."""
        return sorted(name for name, stored in self._others.items() if stored.modified > moment)

    def make_bucket(self) -> bool:
        """Make the bucket if there is none; whether it was made."""
        return self._tree.make_bucket()

    def write(self) -> None:
        """Write what is missing or other."""
        at_once(partial(self._write, name, entry) for name, entry in self.missing.items())

    def _compare_bytes(self, name: str, entry: ObjectRecord, stored: StoredObject) -> None:
        """The same bytes have another ETag where they were sent in other parts."""
        digest = None
        if stored.num_bytes == entry.num_bytes:
            with scratch_file() as path:
                digest = self._tree.receive(name, path, stored)
        if digest == entry.digest:
            self.num_unchanged += 1
        else:
            self._others[name] = stored
            self.missing[name] = entry

    def _write(self, name: str, entry: ObjectRecord) -> None:
        with scratch_file() as path:
            self._store.fetch(entry.digest, path)
            if not self._tree.put_if(name, path, self._others.get(name)):
                self.overtaken.append(name)
