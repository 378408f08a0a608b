import os
import shutil
import socket
import sqlite3
from contextlib import closing

import pytest
from urllib3.exceptions import ProtocolError

from espalier.records import RegistryError, StorageError
from espalier.registry.backups import RestorePlan, expect_no_server
from espalier.registry.backups.database import replace_database
from espalier.storage.transfer import PART_BYTES
from tests.fakes.s3_stand_in import Bucket, InMemoryPool, s3_stand_in
from tests.unit.registry.backups.conftest import BACKUPS, FILES, NOW, register


class Killed(BaseException):
    """As SIGKILL."""


def versions(path):
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT version FROM model_versions")]


def restored(site):
    plan = site.plan()
    plan.expect_nothing_newer()
    return plan.carry_out(site.now)


def test_a_lost_database_and_bucket_come_back(site):
    held, champion = site.objects, site.back_up().database.champions
    site.database.unlink()
    del site.stand_in.buckets[FILES]
    done = restored(site)
    assert done.objects == 2
    assert done.made_buckets == [f"s3://{FILES}"]
    assert site.objects == held
    assert versions(site.database) == [1]
    site.later(hours=1)
    assert site.back_up().database.champions == champion


def test_what_is_there_is_not_written_again(site):
    site.back_up()
    assert restored(site).objects == 0


def test_a_database_that_was_written_since_is_not_replaced(site):
    site.back_up()
    register(site.database, 2)
    with pytest.raises(RegistryError, match=r"after the backup of .*--overwrite-newer"):
        restored(site)
    assert versions(site.database) == [1, 2]


def test_told_to_it_replaces_and_keeps_the_newer(site):
    site.back_up()
    register(site.database, 2)
    done = site.plan().carry_out(site.now)
    assert versions(site.database) == [1]
    assert versions(done.kept_database) == [1, 2]


def test_the_fresh_database_of_a_new_server_is_replaced(site):
    """MLflow makes an empty one when it starts without."""
    from tests.factories.mlflow_database import empty_database

    site.back_up()
    empty_database(site.database)
    os.utime(site.database)
    restored(site)
    assert versions(site.database) == [1]


def test_an_object_that_was_written_since_is_not_replaced(site):
    site.back_up()
    site.later(hours=1)
    site.put("1/models/config.json", b"newer")
    with pytest.raises(RegistryError, match=r"config.json was written after the backup"):
        restored(site)
    assert site.objects["1/models/config.json"] == b"newer"


def test_what_is_published_during_a_restore_is_not_overwritten(site):
    site.back_up()
    site.later(hours=1)
    site.database.unlink()
    site.put("1/models/config.json", b"older bytes")
    weights = site.stand_in.buckets[FILES].objects.pop("1/models/weights")
    site.put("3/other", b"3")
    plan = site.plan()
    site.put("1/models/config.json", b"replaced meanwhile")
    site.put("1/models/weights", b"made meanwhile")
    with pytest.raises(RegistryError, match=r"(?s)while .*config\.json.*weights") as raised:
        plan.carry_out(site.now)
    assert site.objects["1/models/config.json"] == b"replaced meanwhile"
    assert site.objects["1/models/weights"] == b"made meanwhile" != weights.content
    assert not site.database.exists(), "it would name the files that are not restored"
    assert "2 objects" in str(raised.value)


def test_losing_one_object_leaves_the_others_restored(site):
    site.back_up()
    del site.stand_in.buckets[FILES]
    plan = site.plan()
    site.stand_in.buckets[FILES] = Bucket()
    site.put("1/models/config.json", b"made meanwhile")
    with pytest.raises(RegistryError, match=r"1 object .*config\.json"):
        plan.carry_out(site.now)
    assert site.objects["1/models/weights"] == b"w" * 1000


def test_a_lost_answer_is_no_lost_race(site):
    """The write is sent again, and meets what it has written itself."""
    held = site.objects
    site.back_up()
    del site.stand_in.buckets[FILES]
    lost = []

    def drop(line):
        if line.startswith(f"PUT /{FILES}/") and line not in lost:
            lost.append(line)
            raise ProtocolError("connection broken")

    site.pool = InMemoryPool(site.stand_in, after=drop)
    restored(site)
    assert len(lost) == 2
    assert site.objects == held


@pytest.mark.parametrize("is_there", [True, False])
def test_an_object_in_parts_is_not_overwritten_either(site, is_there):
    large = b"1" * (PART_BYTES + 1)
    site.put("1/models/large", large)
    site.back_up()
    if is_there:
        site.put("1/models/large", b"older")
    else:
        del site.stand_in.buckets[FILES].objects["1/models/large"]
    plan = site.plan()
    site.put("1/models/large", b"made meanwhile")
    with pytest.raises(RegistryError, match="large"):
        plan.carry_out(site.now)
    assert site.objects["1/models/large"] == b"made meanwhile"
    assert site.stand_in.buckets[FILES].uploads == {}, "parts would be paid for"
    site.plan().carry_out(site.now)
    assert site.objects["1/models/large"] == large


def test_a_database_that_is_written_during_a_restore_stays(site):
    """Somebody has started the server again meanwhile."""
    site.back_up()
    register(site.database, 2)
    plan = site.plan()
    register(site.database, 3)
    with pytest.raises(RegistryError, match="written while"):
        plan.carry_out(site.now)
    assert versions(site.database) == [1, 2, 3]


def test_the_same_bytes_under_another_etag_are_no_change(site):
    site.back_up()
    site.later(hours=1)
    objects = site.stand_in.buckets[FILES].objects
    name = "1/models/weights"
    objects[name] = objects[name]._replace(etag="of-parts-2", modified=site.now)
    assert restored(site).objects == 0


def test_objects_that_a_backup_does_not_have_stay(site):
    site.back_up()
    site.put("2/models/weights", b"later")
    restored(site)
    assert site.objects["2/models/weights"] == b"later"


def test_a_lost_content_is_told_before_anything_is_written(site):
    record = site.back_up()
    digest = record.objects[f"s3://{FILES}"]["1/models/weights"].digest
    del site.stand_in.buckets[BACKUPS].objects[f"nightly/sha256/{digest}"]
    site.stand_in.buckets[FILES] = Bucket()
    with pytest.raises(StorageError, match="1 contents of the backup"):
        restored(site)
    assert site.objects == {}


def test_damaged_bytes_are_not_restored(site):
    record = site.back_up()
    digest = record.database.digest
    objects = site.stand_in.buckets[BACKUPS].objects
    content = objects[f"nightly/sha256/{digest}"].content
    harmed = objects[f"nightly/sha256/{digest}"]._replace(content=content[:-1] + b"x")
    objects[f"nightly/sha256/{digest}"] = harmed
    site.database.unlink()
    with pytest.raises(StorageError, match="damaged"):
        restored(site)
    assert not site.database.exists()


def test_a_journal_of_the_former_database_does_not_stay(site, tmp_path):
    """sqlite would apply it to the restored one."""
    site.back_up()
    with closing(sqlite3.connect(site.database, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        for number in range(2000):  # more than the cache: pages are in the file before the commit
            database.execute(
                "INSERT INTO runs (run_uuid, experiment_id, name) VALUES (?, 0, ?)",
                (f"x{number}", "y" * 200),
            )
        for name in (site.database, site.database.with_name("mlflow.db-journal")):
            shutil.copy(name, tmp_path / f"crashed-{name.name}")
    crashed = tmp_path / "crashed-mlflow.db"
    copy = tmp_path / "copy"
    site.store.fetch(site.store.record().database.digest, copy)
    replace_database(crashed, copy, NOW)
    assert not (tmp_path / "crashed-mlflow.db-journal").exists()
    assert crashed.read_bytes() == copy.read_bytes()
    assert versions(crashed) == [1]


def test_a_database_that_is_in_use_is_not_replaced(site):
    site.back_up()
    with closing(sqlite3.connect(site.database, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryError, match="locked"):
            site.plan().carry_out(site.now)
    assert versions(site.database) == [1]


def test_a_killed_restore_is_completed_by_the_same(site):
    held = site.objects
    site.back_up()
    for allowed in range(100):
        site.database.unlink(missing_ok=True)
        site.stand_in.buckets.pop(FILES, None)
        left = [allowed]

        def count(_, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        site.pool = InMemoryPool(site.stand_in, before=count)
        try:
            restored(site)
            break
        except Killed:
            site.pool = None
            # the database comes last, so it names no file that is missing
            assert not site.database.exists()
            restored(site)
            assert site.objects == held
            assert versions(site.database) == [1]
    assert allowed > 8


def test_a_backup_of_objects_alone_restores_no_database(site):
    record = site.back_up(database=None)
    with pytest.raises(RegistryError, match="has no database"):
        site.plan()
    trees = {f"s3://{FILES}": site.tree(FILES)}
    assert RestorePlan(site.store, record, None, trees).carry_out(NOW).kept_database is None


def plan_of(site, *only):
    trees = {f"s3://{FILES}": site.tree(FILES)}
    return RestorePlan(site.store, site.store.record(), None, trees, only)


@pytest.mark.parametrize("address", ["1/models", "1/models/", "1/models/weights"])
def test_a_part_of_a_tree_is_restored_alone(site, address):
    site.put("1/models-2/other", b"o")
    site.back_up()
    del site.stand_in.buckets[FILES]
    plan_of(site, f"s3://{FILES}/{address}").carry_out(NOW)
    assert "1/models/weights" in site.objects
    assert "1/models-2/other" not in site.objects


def test_a_tree_needs_only_its_own_contents(site):
    record = site.back_up()
    digest = record.objects[f"s3://{FILES}"]["1/models/weights"].digest
    del site.stand_in.buckets[BACKUPS].objects[f"nightly/sha256/{digest}"]
    del site.stand_in.buckets[FILES]
    plan_of(site, f"s3://{FILES}/1/models/config.json").carry_out(NOW)
    assert list(site.objects) == ["1/models/config.json"]


def test_a_tree_that_no_backup_has_is_refused(site):
    site.back_up()
    with pytest.raises(RegistryError, match=rf"nothing of s3://other.*s3://{FILES}"):
        plan_of(site, f"s3://{FILES}/1/models", "s3://other")


def test_the_database_of_a_server_that_answers_is_not_replaced():
    with s3_stand_in() as anything, pytest.raises(RegistryError, match="Stop it"):
        expect_no_server(anything.endpoint)
    for uri in (None, "sqlite:///here.db", "http://127.0.0.1:9"):
        expect_no_server(uri)


def test_the_database_of_a_silent_server_is_not_replaced(monkeypatch):
    """A busy one accepts connections and answers late."""
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        uri = f"http://127.0.0.1:{busy.getsockname()[1]}"
        with pytest.raises(RegistryError, match=r"may be running \(TimeoutError"):
            expect_no_server(uri)


def test_a_host_that_nobody_knows_has_no_server():
    expect_no_server("http://espalier-mlflow.invalid:5000")


def test_a_name_server_that_fails_says_nothing_of_mlflow(monkeypatch):
    def failing(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", failing)
    with pytest.raises(RegistryError, match=r"may be running .*Temporary failure"):
        expect_no_server("http://espalier-mlflow:5000")
