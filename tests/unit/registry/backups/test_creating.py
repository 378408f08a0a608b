import re
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from espalier.records import RegistryError, StorageAwayError, StorageError
from espalier.registry.backups import BackupRecord, Source
from tests.factories.storage import QUICK
from tests.fakes.s3_stand_in import Bucket, InMemoryPool, Refusal
from tests.unit.registry.backups.conftest import BACKUPS, FILES, register


class Killed(BaseException):
    """As SIGKILL: nothing of the program runs after it."""


def test_a_backup_says_what_it_holds(site):
    record = site.store.record(site.back_up().name)
    assert record.name.startswith("20260305T120000Z-")
    assert record.num_objects == 2
    assert (record.database.runs, record.database.versions) == (1, 1)
    assert record.database.champions == {"agent": "1"}


def test_the_bucket_of_backups_is_made(site):
    site.back_up()
    assert BACKUPS in site.stand_in.buckets
    assert any("made the bucket" in line for line in site.said)


def test_what_did_not_change_is_neither_read_nor_sent(site):
    first = site.back_up()
    site.later(days=1)
    site.put("2/models/weights", b"v" * 10)
    asked = []
    site.pool = InMemoryPool(site.stand_in, before=asked.append)
    second = site.back_up()
    read = [line for line in asked if line.startswith(f"GET /{FILES}/") and "?" not in line]
    assert read == [f"GET /{FILES}/2/models/weights"]
    sent = [line for line in asked if line.startswith(f"PUT /{BACKUPS}/nightly/sha256/")]
    assert len(sent) == 1  # the database is the same as well
    assert second.digests > first.digests


def test_a_replaced_object_is_read_again(site):
    site.back_up()
    site.later(hours=1)
    site.put("1/models/config.json", b"[]")
    record = site.back_up()
    objects = record.objects[f"s3://{FILES}"]
    assert objects["1/models/config.json"].num_bytes == 2
    assert len(site.store.names()) == 2


def test_the_copy_of_a_database_in_use_is_whole(site, tmp_path):
    """Rows are written in pairs; no copy has half of one."""
    done = threading.Event()

    def write():
        with closing(sqlite3.connect(site.database, timeout=30)) as database:
            number = 100
            while not done.is_set():
                number += 1
                with database:
                    for name in ("a", "b"):
                        database.execute(
                            "INSERT INTO runs (run_uuid, experiment_id, name) VALUES (?, 0, ?)",
                            (f"{name}{number}", name),
                        )
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(8):
            record = site.back_up()
            site.later(seconds=1)
            copy = tmp_path / f"{record.name}.db"
            site.store.fetch(record.database.digest, copy)
            with closing(sqlite3.connect(copy)) as database:
                names = [name for (name,) in database.execute("SELECT name FROM runs")]
            assert names.count("a") == names.count("b")
    finally:
        done.set()
        writer.join()


def test_a_file_that_is_no_database_is_refused(site, tmp_path):
    other = tmp_path / "notes.db"
    other.write_text("not a database, but long enough to look at" * 9)
    with pytest.raises(RegistryError, match="not MLflow's database"):
        site.back_up(database=other, sources=[])
    with closing(sqlite3.connect(tmp_path / "empty.db")) as database:
        database.execute("CREATE TABLE x (y)")
    with pytest.raises(RegistryError, match="no such table"):
        site.back_up(database=tmp_path / "empty.db", sources=[])
    with pytest.raises(RegistryError, match="there is no database"):
        site.back_up(database=tmp_path / "absent.db", sources=[])
    assert site.store.names() == []


def test_a_backup_within_what_it_copies_is_refused(site):
    site.stand_in.buckets[BACKUPS] = Bucket()
    with pytest.raises(StorageError, match="lies in"):
        site.back_up(sources=[Source(site.tree(BACKUPS))])
    site.back_up(sources=[Source(site.tree(BACKUPS), ("nightly/",))])


def test_names_that_are_left_out_are_recorded(site):
    checkpoint, uri = "run-1/steps/train/checkpoint/", f"s3://{FILES}"
    site.put(f"{checkpoint}manifest.json", b"m")
    site.put(f"{checkpoint}sha256/00", b"c")
    site.put("run-1/steps/train/executor_output.json", b"{}")
    glob = "**/steps/*/checkpoint/"
    record = site.back_up(sources=[Source(site.tree(FILES), (glob, "kept/"))])
    left_out = [f"{checkpoint}manifest.json", f"{checkpoint}sha256/00"]
    assert site.store.record().excluded == {uri: {glob: left_out}}
    assert not record.objects[uri].keys() & set(left_out)
    assert "run-1/steps/train/executor_output.json" in record.objects[uri]
    assert record.is_complete
    assert f"2 left out by {glob}" in site.said[-1]


def test_a_record_of_before_is_read(site):
    """Its digest knows nothing of what was left out, or of faults."""
    content = site.back_up().model_dump_json(exclude={"excluded", "faults"})
    assert BackupRecord.parsed(content.encode(), "there").is_complete


def test_an_object_that_goes_meanwhile_is_left_out(site):
    def go(line):
        if line == f"GET /{FILES}/1/models/weights":
            site.stand_in.buckets[FILES].objects.pop("1/models/weights", None)

    site.pool = InMemoryPool(site.stand_in, before=go)
    assert list(site.back_up().objects[f"s3://{FILES}"]) == ["1/models/config.json"]


def test_a_manifest_names_only_contents_that_are_copied(site):
    """It is replaced, with new contents, while the backup reads."""
    site.put("run/manifest.json", b"names content-1")
    site.put("run/content-1", b"1")

    def publish(line):
        if line == f"GET /{FILES}/1/models/weights":
            site.put("run/content-2", b"2")
            site.put("run/manifest.json", b"names content-2")

    site.pool = InMemoryPool(site.stand_in, after=publish)
    objects = site.back_up().objects[f"s3://{FILES}"]
    assert objects["run/manifest.json"].num_bytes == len(b"names content-1")
    assert "run/content-1" in objects


def test_an_artifact_that_is_replaced_meanwhile_is_copied_anew(site):
    """As a checkpoint: its former contents are deleted at once."""
    site.put("run/manifest.json", b"names content-1")
    site.put("run/sha256/content-1", b"1")

    def replace(line):
        if line == f"GET /{FILES}/1/models/weights":
            site.put("run/sha256/content-2", b"2")
            site.put("run/manifest.json", b"names the content-2")
            site.stand_in.buckets[FILES].objects.pop("run/sha256/content-1", None)

    site.pool = InMemoryPool(site.stand_in, after=replace)
    record = site.back_up()
    objects = record.objects[f"s3://{FILES}"]
    assert objects["run/manifest.json"].num_bytes == len(b"names the content-2")
    assert "run/sha256/content-2" in objects
    assert record.is_complete


def test_a_manifest_that_goes_meanwhile_is_forgotten(site):
    site.put("run/manifest.json", b"names content-1")
    site.put("run/sha256/content-1", b"1")

    def go(line):
        if line == f"GET /{FILES}/1/models/weights":
            for name in ("run/manifest.json", "run/sha256/content-1"):
                site.stand_in.buckets[FILES].objects.pop(name, None)

    site.pool = InMemoryPool(site.stand_in, after=go)
    record = site.back_up()
    assert "run/manifest.json" not in record.objects[f"s3://{FILES}"]
    assert record.is_complete


def refusing(site, pattern, status=403, code="AccessDenied"):
    """A server that refuses these requests."""
    answer = site.stand_in.answer

    def refuse(stand_in, request, body):
        if re.search(pattern, f"{request.command} {request.path}"):
            raise Refusal(status, code, "of the test")
        return answer(stand_in, request, body)

    site.stand_in.answer = refuse


def test_an_object_that_cannot_be_read_is_named(site):
    refusing(site, f"GET /{FILES}/1/models/weights")
    record = site.back_up()
    uri = f"s3://{FILES}"
    assert list(record.objects[uri]) == ["1/models/config.json"]
    assert record.database is not None
    assert list(record.faults) == [f"{uri}/1/models/weights"]
    assert "AccessDenied" in record.faults[f"{uri}/1/models/weights"]
    assert site.store.record() == record
    assert any("weights" in line for line in site.said)


def test_an_object_that_fails_for_ever_is_named(site):
    """The server answers all the rest: its disk has lost a part of this one."""
    began = time.monotonic()
    refusing(site, f"GET /{FILES}/1/models/weights", 503, "SlowDownRead")
    record = site.back_up()
    (why,) = record.faults.values()
    assert why.startswith("the server serves others")
    assert list(record.faults) == [f"s3://{FILES}/1/models/weights"]
    assert time.monotonic() - began < 2 * QUICK.total_s, "it is not waited for again"


def test_a_server_that_went_away_ends_the_backup(site):
    def away(line):
        if line == f"GET /{FILES}/1/models/weights":
            refusing(site, FILES, 500, "InternalError")

    site.pool = InMemoryPool(site.stand_in, before=away)
    with pytest.raises(StorageAwayError):
        site.back_up()
    assert site.store.names() == []


def test_an_object_replaced_all_the_time_is_named(site):
    site.pool = InMemoryPool(
        site.stand_in,
        after=lambda line: (
            site.put("1/models/config.json", str(time.monotonic_ns()).encode())
            if line.startswith(f"GET /{FILES}/1/models/config.json")
            else None
        ),
    )
    record = site.back_up()
    assert list(record.faults) == [f"s3://{FILES}/1/models/config.json"]
    assert "--exclude" in record.faults[f"s3://{FILES}/1/models/config.json"]


def test_a_bucket_that_is_refused_leaves_the_others(site):
    record = site.back_up(sources=[Source(site.tree("absent")), Source(site.tree(FILES))])
    assert list(record.faults) == ["s3://absent"]
    assert "no such bucket" in record.faults["s3://absent"]
    assert record.num_objects == 2


def test_a_damaged_database_leaves_the_objects(site):
    site.database.write_bytes(b"not a database, but long enough to look at" * 9)
    record = site.back_up()
    assert record.database is None
    assert list(record.faults) == [str(site.database)]
    assert record.num_objects == 2


def test_a_damaged_record_costs_no_reading_anew(site):
    """The one before it tells as much."""
    site.back_up()
    site.later(hours=1)
    newest = f"nightly/backups/{site.back_up().name}.json"
    objects = site.stand_in.buckets[BACKUPS].objects
    objects[newest] = objects[newest]._replace(content=b"{}")
    site.later(hours=1)
    site.back_up()
    assert any("0 of them read" in line for line in site.said[-2:]), site.said
    assert any("a backup is damaged" in line for line in site.said)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_request_leaves_the_last_backup(site, when):
    first = site.back_up()
    site.later(hours=1)
    site.put("2/models/weights", b"v" * 10)
    register(site.database, 2)
    allowed = 0
    while True:
        left = [allowed]

        def count(_, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        site.pool = InMemoryPool(site.stand_in, **{when: count})
        try:
            site.back_up()
            break
        except Killed:
            pass
        site.pool = None
        newest = site.store.record()
        assert site.store.verify(newest, site.said.append) == []
        if newest.name != first.name:  # killed after its record was written
            assert newest.database.versions == 2
            site.stand_in.buckets[BACKUPS].objects.pop(f"nightly/backups/{newest.name}.json")
        allowed += 1
    assert allowed > 10
    site.pool = None
    assert site.store.record().database.versions == 2
