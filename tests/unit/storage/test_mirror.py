"""The copy in S3 of a folder of checkpoints, while its owner replaces files in it."""

import json
import os
import re
import threading
import time

import pytest

from espalier.records import Provenance
from espalier.storage import mirror as module
from espalier.storage.expiring import ExpiringLocation
from espalier.storage.layout import KEPT_MARK
from espalier.storage.mirror import FolderMirror
from tests.factories.storage import QUICK, files, key_of, settings
from tests.fakes.s3_stand_in import BUCKET, MIN_PART_BYTES

PREFIX = "runs/checkpoints/train/k"
WORK = Provenance(producer="train", config_digest="c", seed=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.02)
    monkeypatch.setattr(module, "_PAUSE_AFTER_FAULT_S", 0.02)


@pytest.fixture
def mirrored(s3, tmp_path):
    """The mirror of a folder of this name, and what it has said."""

    def made(name="work"):
        said = []
        place = ExpiringLocation(settings(s3, QUICK), BUCKET, PREFIX)
        return FolderMirror(tmp_path / name, place, WORK, said.append), said

    return made


def save(folder, content, name="latest.pt"):
    """As a checkpoint is saved: by a rename."""
    folder.mkdir(exist_ok=True)
    (folder / "latest.partial").write_bytes(content)
    (folder / "latest.partial").replace(folder / name)


def wait_for(condition):
    deadline = time.monotonic() + 120  # a busy machine is slow and not wrong
    while not condition():
        assert time.monotonic() < deadline, "it never came that far"
        time.sleep(0.01)


def copied(s3):
    """Contents of the copy by name; nothing where there is none."""
    stored = s3.objects.get(f"{PREFIX}/manifest.json")
    if stored is None:
        return {}
    named = json.loads(stored.content)["files"]
    return {name: s3.objects[f"{PREFIX}/sha256/{sha}"].content for name, sha in named.items()}


def is_any(manifest):
    return True


def test_a_checkpoint_is_copied_and_taken_up_on_another_disk(s3, mirrored, tmp_path):
    mirror, said = mirrored()
    with mirror:
        save(tmp_path / "work", b"rows", "replay-2.parquet")
        save(tmp_path / "work", b"step 2")
        wait_for(lambda: len(copied(s3)) == 2)
    assert said == [f"checkpoints are copied to s3://{BUCKET}/{PREFIX}"]
    again, said = mirrored("new")
    again.restore(is_any)
    assert files(tmp_path / "new") == {"latest.pt": b"step 2", "replay-2.parquet": b"rows"}
    assert "resumes from the checkpoint of 20" in said[0]
    s3.requests.clear()
    with again:
        time.sleep(0.2)
    assert s3.requests == [], "what was taken up needs no copy"


def test_each_newer_checkpoint_replaces_the_copy(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    with mirror:
        for step in (b"1", b"2", b"3"):
            save(tmp_path / "work", step)
            wait_for(lambda step=step: copied(s3) == {"latest.pt": step})
        wait_for(lambda: key_of(b"2", PREFIX) not in s3.objects)  # before the rest is given up
    assert set(s3.objects) == {
        f"{PREFIX}/{KEPT_MARK}", f"{PREFIX}/manifest.json", key_of(b"3", PREFIX)
    }  # fmt: skip


def test_a_checkpoint_that_is_being_saved_is_waited_for(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    save(tmp_path / "work", b"1")
    (tmp_path / "work" / "latest.partial").write_bytes(b"half")
    with mirror:
        time.sleep(0.2)
        assert s3.requests == []
        (tmp_path / "work" / "latest.partial").replace(tmp_path / "work" / "latest.pt")
        wait_for(lambda: copied(s3) == {"latest.pt": b"half"})


def test_drafts_of_killed_processes_are_not_copied(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    (tmp_path / "work" / ".k.draft").mkdir(parents=True)
    (tmp_path / "work" / ".k.draft" / "rows").write_bytes(b"half")
    (tmp_path / "work" / "latest.partial").write_bytes(b"half")
    os.utime(tmp_path / "work" / "latest.partial", (1, 1))
    (tmp_path / "work" / "k").mkdir()
    (tmp_path / "work" / "k" / "rows").write_bytes(b"whole")
    with mirror:
        wait_for(lambda: copied(s3))
    assert copied(s3) == {"k/rows": b"whole"}


def test_a_checkpoint_stays_itself_and_those_saved_meanwhile_are_skipped(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    s3.fail("PUT", re.escape(key_of(b"1", PREFIX)), "slow")
    seen = []
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: s3.counted("PUT", key_of(b"1", PREFIX)))
        for step in range(2, 9):
            save(tmp_path / "work", str(step).encode())
        wait_for(lambda: seen.append(copied(s3)) or seen[-1] == {"latest.pt": b"8"})
    assert {"latest.pt": b"1"} in seen
    contents = {key for key in (line.split()[1] for line in s3.requests) if "/sha256/" in key}
    assert contents == {f"/{BUCKET}/{key_of(x, PREFIX)}" for x in (b"1", b"8")}


def test_a_long_computation_renews_the_mark_of_its_use(s3, mirrored, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TOUCHED_EVERY_S", 0.05)
    mirror, _ = mirrored()
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: s3.counted("PUT", re.escape(KEPT_MARK)) >= 3)
    assert s3.counted("PUT", key_of(b"1", PREFIX)) == 1


def test_an_upload_killed_midway_leaves_the_former_copy(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    large = b"2" * (3 * MIN_PART_BYTES)
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: copied(s3))
        s3.fail("PUT", "partNumber=2", "slow", times=99)
        save(tmp_path / "work", large)
        wait_for(lambda: s3.counted("PUT", "partNumber=2"))
        started = time.monotonic()
    assert time.monotonic() - started < 5, "an upload that nobody needs is given up"
    again, _ = mirrored("new")
    again.restore(is_any)
    assert files(tmp_path / "new") == {"latest.pt": b"1"}


def test_a_failing_stage_leaves_its_newest_checkpoint_an_interrupted_none(s3, mirrored, tmp_path):
    def end(error, content, *, uploads):
        save(tmp_path / "work", content)
        wait_for(lambda: s3.counted("PUT") or not uploads)
        raise error

    with pytest.raises(ValueError, match="a lost worker"), mirrored()[0]:
        end(ValueError("a lost worker"), b"newest", uploads=False)
    assert copied(s3) == {"latest.pt": b"newest"}
    s3.requests.clear()
    s3.fail("PUT", "", "slow", times=99)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), mirrored()[0]:
        end(KeyboardInterrupt, b"2", uploads=True)
    assert time.monotonic() - started < 0.8


@pytest.mark.parametrize("harm", ["lost", "other bytes", "no manifest", "away"])
def test_a_broken_copy_is_left_and_said(s3, mirrored, tmp_path, harm):
    mirror, _ = mirrored()
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: copied(s3))
    key = key_of(b"1", PREFIX)
    match harm:
        case "lost":
            del s3.objects[key]
        case "other bytes":
            s3.objects[key] = s3.objects[key]._replace(content=b"2")
        case "no manifest":
            name = f"{PREFIX}/manifest.json"
            s3.objects[name] = s3.objects[name]._replace(content=b"{")
        case _:
            s3.fail("GET", "", "error", times=10**6)
    again, said = mirrored("new")
    again.restore(is_any)
    assert not (tmp_path / "new").exists()
    assert said[0].startswith(f"no checkpoint is restored from s3://{BUCKET}/{PREFIX}")


def test_neither_other_work_nor_a_kept_disk_takes_the_copy(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: copied(s3))
    other, said = mirrored("new")
    other.restore(lambda manifest: manifest.config_digest == "other")
    assert not (tmp_path / "new").exists()
    assert said == []
    save(tmp_path / "work", b"2")
    again, _ = mirrored()
    again.restore(is_any)
    assert files(tmp_path / "work") == {"latest.pt": b"2"}


def test_a_store_that_comes_back_gets_the_newest(s3, mirrored, tmp_path):
    mirror, said = mirrored()
    s3.fail("PUT", "", "error", times=10**6)
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: said)
        s3.faults.clear()
        wait_for(lambda: copied(s3) == {"latest.pt": b"1"})
    assert len([line for line in said if "not copied" in line]) == 1


def test_two_owners_of_one_place_leave_a_whole_copy(s3, mirrored, tmp_path):
    """Two runs of the same work at once: whoever goes on finds a checkpoint of one of them."""
    mirrors = [mirrored(name)[0] for name in ("one", "two")]
    with mirrors[0], mirrors[1]:
        for step in range(6):
            for name in ("one", "two"):
                save(tmp_path / name, f"{name} {step}".encode())
                time.sleep(0.05)
        wait_for(lambda: copied(s3))
    again, _ = mirrored("new")
    again.restore(is_any)
    assert files(tmp_path / "new")["latest.pt"].split()[0] in (b"one", b"two")


def test_what_is_forgotten_leaves_nothing(s3, mirrored, tmp_path):
    mirror, _ = mirrored()
    with mirror:
        save(tmp_path / "work", b"1")
        wait_for(lambda: copied(s3))
        s3.fail("PUT", "partNumber=2", "slow", times=99)
        save(tmp_path / "work", b"2" * (2 * MIN_PART_BYTES + 1))
        wait_for(lambda: s3.counted("PUT", "partNumber=2"))
    assert s3.buckets[BUCKET].uploads
    ExpiringLocation(settings(s3), BUCKET, PREFIX).forget()
    assert s3.objects == {}
    assert s3.buckets[BUCKET].uploads == {}
    assert not any(thread.name == "checkpoints" for thread in threading.enumerate())
