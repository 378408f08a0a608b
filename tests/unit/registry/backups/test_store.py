import contextlib
import random
from datetime import timedelta

import pytest

from espalier.records import StorageError
from espalier.registry.backups import BackupRecord, open_store
from tests.fakes.s3_stand_in import BUCKET, s3_stand_in
from tests.unit.registry.backups.conftest import BACKUPS, FILES


def test_the_newest_backups_stay_and_their_contents(site):
    names = []
    for number in range(4):
        site.put("1/models/config.json", f"{number}".encode())
        names.append(site.back_up().name)
        site.later(days=1)
    assert site.store.prune(2, site.now).gone == names[1::-1]
    assert site.store.names() == names[:1:-1]
    for name in site.store.names():
        assert site.store.verify(site.store.record(name), site.said.append) == []


def test_contents_go_at_the_pruning_after_their_backup(site):
    site.back_up()
    site.put("1/models/config.json", b"other")
    site.later(days=2)
    newest = site.back_up()
    before = len(site.store.contents())
    site.store.prune(1, site.now)
    assert len(site.store.contents()) == before
    site.store.prune(1, site.now)
    assert site.store.contents().keys() == newest.digests


def test_young_contents_without_a_backup_stay(site, tmp_path):
    """A backup that is being made has sent them."""
    site.back_up()
    path = tmp_path / "content"
    path.write_bytes(b"sent")
    site.store.put("0" * 64, path)
    site.store.prune(1, site.now + timedelta(hours=23))
    assert "0" * 64 in site.store.contents()
    site.store.prune(1, site.now + timedelta(hours=25))
    assert "0" * 64 not in site.store.contents()


def damage(site, name):
    objects = site.stand_in.buckets[BACKUPS].objects
    key = f"nightly/backups/{name}.json"
    edited = objects[key].content.replace(b'"versions":1', b'"versions":9')
    objects[key] = objects[key]._replace(content=edited)


def test_a_damaged_record_is_told_and_its_contents_stay(site):
    record = site.back_up()
    damage(site, record.name)
    with pytest.raises(StorageError, match="changed since it was written"):
        site.store.record()
    pruned = site.store.prune(1, site.now + timedelta(days=9))
    assert list(pruned.damaged) == [record.name]
    assert pruned.gone == []
    assert site.store.contents().keys() == record.digests


def test_a_damaged_record_goes_once_it_is_old(site):
    damaged = site.back_up()
    damage(site, damaged.name)
    site.put("1/models/config.json", b"other")
    pruned = []
    for _ in range(4):
        site.later(days=2)
        newest = site.back_up()
        pruned.append(site.store.prune(2, site.now))
    assert [damaged.name in each.damaged for each in pruned] == [True, False, False, False]
    assert damaged.name in pruned[1].gone
    assert site.store.contents().keys() == newest.digests, "what it needed goes as well"


def test_incomplete_backups_push_no_complete_one_out(site):
    complete = site.back_up().name
    healthy, incomplete = site.database.read_bytes(), []
    site.database.write_bytes(b"damaged" * 99)
    for _ in range(4):
        site.later(days=1)
        incomplete.append(site.back_up().name)
        site.store.prune(2, site.now)
    assert site.store.names() == [*incomplete[:1:-1], complete]
    site.database.write_bytes(healthy)
    whole = []
    for _ in range(2):
        site.later(days=1)
        whole.append(site.back_up().name)
        site.store.prune(2, site.now)
    assert site.store.names() == whole[::-1]


def test_a_record_of_another_schema_is_told(site):
    record = site.back_up()
    objects = site.stand_in.buckets[BACKUPS].objects
    key = f"nightly/backups/{record.name}.json"
    edited = objects[key].content.replace(b'"schema_version":1', b'"schema_version":7')
    objects[key] = objects[key]._replace(content=edited)
    with pytest.raises(StorageError, match="schema 7"):
        site.store.record()


@pytest.mark.parametrize("harm", ["lost", "cut", "damaged"])
def test_verification_finds_what_is_harmed(site, harm):
    record = site.back_up()
    digest = record.objects[f"s3://{FILES}"]["1/models/weights"].digest
    objects = site.stand_in.buckets[BACKUPS].objects
    key = f"nightly/sha256/{digest}"
    if harm == "lost":
        del objects[key]
    else:
        content = objects[key].content
        changed = content[:-1] if harm == "cut" else b"x" + content[1:]
        objects[key] = objects[key]._replace(content=changed)
    assert site.store.verify(record, site.said.append) == [digest]
    assert harm in site.said[-1]


def test_a_backup_that_is_not_there_names_those_that_are(site):
    site.store.make_bucket()
    with pytest.raises(StorageError, match="there is no backup"):
        site.store.record()
    record = site.back_up()
    with pytest.raises(StorageError, match=record.name):
        site.store.record("20200101T000000Z-00000000")


def test_backups_may_lie_on_a_server_of_their_own():
    with s3_stand_in() as here, s3_stand_in() as there:
        own = {f"ESPALIER_BACKUP_{name}": value for name, value in there.environment.items()}
        # of temporary keys, which the others are not
        session = {"AWS_SESSION_TOKEN": "of here"}
        found = open_store(f"s3://{BUCKET}/x", {**here.environment, **session, **own})
        assert found.names() == []
        assert here.requests == []
        assert there.requests


def test_a_record_with_any_changed_bytes_is_refused(site):
    """Either it is refused with a message, or what it says is the same."""
    record = site.back_up()
    content, rng = record.model_dump_json().encode(), random.Random(3)
    for _ in range(400):
        changed = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(changed))
            match rng.randrange(3):
                case 0:
                    changed[place] = rng.randrange(256)
                case 1:
                    del changed[place : place + rng.randrange(1, 40)]
                case _:
                    changed[place:place] = changed[place : place + 9]
        with contextlib.suppress(StorageError):
            assert BackupRecord.parsed(bytes(changed), "there") == record
