"""What one backup holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self

from pydantic import BaseModel, Field, ValidationError

from espalier import __version__
from espalier.records import StorageError, json_digest
from espalier.storage.objects import StoredObject

SCHEMA_VERSION = 1
_STAMP = "%Y%m%dT%H%M%SZ"
_NAME_DIGITS = 8


class DamagedRecordError(StorageError):
    """The record of a backup that cannot be read, so that nobody knows what it needs."""


class DatabaseRecord(BaseModel, frozen=True, extra="forbid"):
    """MLflow's sqlite database as it was copied."""

    digest: str
    """SHA-256 of the copy."""
    num_bytes: int
    taken: datetime
    """Nothing that was written later is in the copy."""
    revision: str
    """Of MLflow's tables (alembic); a server of an earlier MLflow cannot read a later one."""
    runs: int
    versions: int
    champions: dict[str, str] = Field(default_factory=dict)
    """Registered model -> version that its alias champion points at."""


class ObjectRecord(BaseModel, frozen=True, extra="forbid"):
    """One object of a bucket as it was copied."""

    digest: str
    """SHA-256."""
    num_bytes: int
    etag: str
    modified: datetime

    @property
    def stored(self) -> StoredObject:
        """The object as it was listed when it was copied."""
        return StoredObject(self.num_bytes, self.etag, self.modified)


class BackupRecord(BaseModel, frozen=True, extra="forbid"):
    """One backup: `integrity` covers all the rest, and each digest the bytes behind it."""

    schema_version: int = SCHEMA_VERSION
    created: datetime
    espalier: str = __version__
    database: DatabaseRecord | None
    """None where MLflow's tables are in a server of their own."""
    objects: dict[str, dict[str, ObjectRecord]]
    """s3://BUCKET/PREFIX -> name below it -> object."""
    excluded: dict[str, dict[str, list[str]]] = Field(default_factory=dict)
    """s3://BUCKET/PREFIX -> glob of --exclude -> names that it left out."""
    faults: dict[str, str] = Field(default_factory=dict)
    """What should be in the backup and is not, by file or s3:// address, and why."""
    integrity: str = ""

    def sealed(self) -> Self:
        """The same with its digest."""
        return self.model_copy(update={"integrity": self._digest()})

    @classmethod
    def parsed(cls, content: bytes, where: str) -> Self:
        """Parse a record and check its digest.

        Raises:
            DamagedRecordError: not a record, of another schema, or changed since it was written.
        """
        try:
            record = cls.model_validate_json(content)
        except ValidationError as error:
            why = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, why["loc"])) or "the file"
            raise DamagedRecordError(
                f"{where}: not the record of a backup ({place}: {why['msg']}). Restore another "
                "backup (`espalier backup list`), or take the release of espalier that wrote it"
            ) from error
        if record.schema_version != SCHEMA_VERSION:
            raise DamagedRecordError(
                f"{where}: schema {record.schema_version} is not known here, only "
                f"{SCHEMA_VERSION}. Restore it with the release of espalier that wrote it"
            )
        if record.integrity != record._digest():
            raise DamagedRecordError(
                f"{where}: changed since it was written. Restore another backup: "
                "`espalier backup list` shows them"
            )
        return record

    @property
    def name(self) -> str:
        """By which a user names it; names sort by time."""
        return f"{self.created.astimezone(UTC).strftime(_STAMP)}-{self.integrity[:_NAME_DIGITS]}"

    @property
    def digests(self) -> set[str]:
        """Of every content that it needs."""
        found = {entry.digest for entries in self.objects.values() for entry in entries.values()}
        return found if self.database is None else found | {self.database.digest}

    @property
    def is_complete(self) -> bool:
        """Whether all is in it that should be; what was excluded should not."""
        return not self.faults

    @property
    def num_excluded(self) -> dict[str, int]:
        """s3://BUCKET/PREFIX/GLOB -> objects that it left out."""
        return {
            f"{uri}/{glob}": len(names)
            for uri, globs in self.excluded.items()
            for glob, names in globs.items()
        }

    @property
    def num_objects(self) -> int:
        """Objects of all buckets."""
        return sum(map(len, self.objects.values()))

    @property
    def num_bytes(self) -> int:
        """Bytes that a restore writes at most."""
        held = sum(e.num_bytes for entries in self.objects.values() for e in entries.values())
        return held + (self.database.num_bytes if self.database else 0)

    def _digest(self) -> str:
        # an empty one does not count
        empty = {name for name in ("excluded", "faults") if not getattr(self, name)}
        return json_digest(self.model_dump(mode="json", exclude={"integrity"} | empty))
