"""Copies of MLflow's database and of buckets, made while both are in use, and the way back.

    record       what one backup holds: the database, and every object with its SHA-256
    store        where backups lie: contents by digest, records by time; retention, verification
    database     a consistent copy of MLflow's sqlite database, and putting one in its place
    globs        names that are left out
    creating     the database first, then the objects that it may name, then the record
    restoring    refused before anything is written where something newer would be lost

A backup counts once its record is there, which is written last and in one request: one that was
killed leaves contents that the next one uses or that retention deletes. Contents are named by their
SHA-256, so an object that did not change since the backup before is neither read nor sent again.
"""

from espalier.registry.backups.creating import Source, create_backup
from espalier.registry.backups.record import BackupRecord, DamagedRecordError, DatabaseRecord
from espalier.registry.backups.restoring import Restored, RestorePlan, expect_no_server
from espalier.registry.backups.store import BackupStore, open_store

__all__ = [
    "BackupRecord",
    "BackupStore",
    "DamagedRecordError",
    "DatabaseRecord",
    "RestorePlan",
    "Restored",
    "Source",
    "create_backup",
    "expect_no_server",
    "open_store",
]
