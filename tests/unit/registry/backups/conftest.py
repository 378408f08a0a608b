"""A filled database, buckets of a stand-in, and a backup of both without sockets."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from espalier.registry.backups import BackupStore, RestorePlan, Source, create_backup
from espalier.storage.objects import ObjectTree
from espalier.storage.requests import S3Requests
from tests.factories.mlflow_database import empty_database
from tests.factories.storage import settings
from tests.fakes.s3_stand_in import Bucket, InMemoryPool, S3StandIn

FILES, BACKUPS = "espalier-mlflow", "espalier-backup"
NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
"""A day after what the stand-in has from the start."""


def register(path, version, *, is_champion=True):
    """One run, one version, and the alias, as rows of MLflow's."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT OR IGNORE INTO registered_models (name) VALUES ('agent')")
        database.execute(
            "INSERT INTO runs (run_uuid, experiment_id, name) VALUES (?, 0, 'r')", (f"r{version}",)
        )
        database.execute(
            "INSERT INTO model_versions (name, version, run_id) VALUES ('agent', ?, ?)",
            (version, f"r{version}"),
        )
        if is_champion:
            database.execute(
                "INSERT OR REPLACE INTO registered_model_aliases (name, alias, version) "
                "VALUES ('agent', 'champion', ?)",
                (version,),
            )


class Site:
    """MLflow's database and bucket, and where their backups lie."""

    def __init__(self, folder):
        self.database = empty_database(folder / "mlflow.db")
        self.stand_in = S3StandIn()
        self.stand_in.buckets[FILES] = Bucket()
        self.stand_in.now = lambda: self.now
        self.now = NOW
        self.said = []
        self.pool = None

    @property
    def objects(self):
        """Contents of MLflow's bucket."""
        return {key: o.content for key, o in self.stand_in.buckets[FILES].objects.items()}

    @property
    def store(self):
        return BackupStore(self.tree(BACKUPS, "nightly"))

    def tree(self, bucket, prefix=""):
        pool = self.pool or InMemoryPool(self.stand_in)
        return ObjectTree(S3Requests(settings(self.stand_in), pool), bucket, prefix)

    def put(self, name, content):
        import hashlib

        from tests.fakes.s3_stand_in import Object

        etag = hashlib.md5(content).hexdigest()
        self.stand_in.buckets[FILES].objects[name] = Object(content, etag, self.now)

    def back_up(self, **changes):
        given = {"database": self.database, "sources": [Source(self.tree(FILES))], **changes}
        return create_backup(
            self.store, given["database"], given["sources"], now=self.now, say=self.said.append
        )

    def plan(self, record=None):
        return RestorePlan(
            self.store, record or self.store.record(), self.database,
            {f"s3://{FILES}": self.tree(FILES)},
        )  # fmt: skip

    def later(self, **span):
        self.now += timedelta(**span)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    made.put("1/models/weights", b"w" * 1000)
    made.put("1/models/config.json", b"{}")
    register(made.database, 1)
    return made
