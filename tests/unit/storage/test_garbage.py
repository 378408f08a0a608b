"""What the collector of S3's garbage deletes, and what it leaves."""

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from espalier.cli import command_line
from espalier.records import StorageError
from espalier.storage.expiring import ExpiringLocation
from espalier.storage.garbage import DEFAULT_AGE, Collector, open_collector
from espalier.storage.layout import COLLECTING, KEPT_MARK, object_name
from espalier.storage.objects import Clock
from espalier.storage.requests import S3Requests
from espalier.storage.transfer import MultipartUpload
from tests.factories.storage import artifact, files, key_of, s3_place, settings
from tests.fakes.s3_stand_in import BUCKET, Object, Refusal

PREFIX = "runs/r17/knowledge"
MARK = f"{PREFIX}/{COLLECTING}"


@pytest.fixture
def publish(s3, tmp_path):
    def published(contents, prefix=PREFIX):
        folder = tmp_path / f"{len(s3.objects)}"
        artifact(folder, contents)
        s3_place(s3, prefix).publish(folder)

    return published


@pytest.fixture
def collect(s3):
    """Collect as if so much time had passed; returns the keys that were deleted."""

    def collected(later=timedelta(days=30), age=DEFAULT_AGE, prefix="runs", *, unpublished=False):
        clock = Clock(now=lambda: datetime.now(UTC) + later)
        before = set(s3.objects)
        said = []
        requests = S3Requests(settings(s3))
        collector = Collector(requests, BUCKET, prefix, clock, unpublished=unpublished)
        collector.collect(age, said.append)
        return before - set(s3.objects), said

    return collected


def begin_upload(s3, key):
    MultipartUpload(S3Requests(settings(s3)), BUCKET, key).begin()


def test_contents_of_a_replaced_artifact_go_after_their_time(s3, publish, collect, tmp_path):
    publish({"rows": b"1", "both": b"0"})
    publish({"rows": b"2", "both": b"0"})
    assert collect(later=timedelta(days=6)) == (set(), [])
    gone, said = collect()
    assert gone == {key_of(b"1")}
    assert said == [f"s3://{BUCKET}/{PREFIX}: deleted 1 objects of 0.0 MB"]
    s3_place(s3).fetch(tmp_path / "there")
    assert files(tmp_path / "there").keys() == {"manifest.json", "rows", "both"}
    assert collect() == (set(), [])


def test_contents_of_a_killed_publication_go_when_asked_for(s3, publish, collect):
    publish({"rows": b"1"})
    del s3.objects[f"{PREFIX}/manifest.json"]
    begin_upload(s3, key_of(b"large"))
    assert collect(later=timedelta(hours=1), unpublished=True) == (set(), [])
    assert collect(unpublished=True)[0] == {key_of(b"1")}
    assert s3.buckets[BUCKET].uploads == {}


def test_uploads_of_unknown_age_stay(s3, collect):
    s3.dates_uploads = False
    begin_upload(s3, key_of(b"large"))
    collect(unpublished=True)
    assert len(s3.buckets[BUCKET].uploads) == 1


def test_an_artifact_that_lost_its_manifest_is_mended_by_it(s3, publish, collect, tmp_path):
    publish({"rows": b"1"})
    manifest = s3.objects.pop(f"{PREFIX}/manifest.json")
    begin_upload(s3, key_of(b"large"))
    gone, said = collect()
    assert gone == set()
    assert len(s3.buckets[BUCKET].uploads) == 1
    (line,) = said
    assert line.startswith(f"s3://{BUCKET}/{PREFIX}: left alone, 1 objects")
    assert "--unpublished" in line
    s3.objects[f"{PREFIX}/manifest.json"] = manifest
    s3_place(s3).fetch(tmp_path / "there")
    assert files(tmp_path / "there")["rows"] == b"1"


def test_a_manifest_lost_while_collecting_makes_no_contents_garbage(s3, publish, collect):
    publish({"rows": b"1"})
    publish({"rows": b"2"})

    class LosingManifest(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            if key == MARK:
                self.pop(f"{PREFIX}/manifest.json", None)

    s3.buckets[BUCKET].objects = LosingManifest(s3.objects)
    assert collect()[0] == {f"{PREFIX}/manifest.json"}


@pytest.mark.parametrize("folder", ["", "images/"])
@pytest.mark.parametrize("sign", ["oci-layout", "index.json"])
@pytest.mark.parametrize("is_within", [False, True])
def test_blobs_of_an_image_layout_are_never_deleted(s3, collect, folder, sign, is_within):
    s3.objects[f"{folder}blobs/sha256/{'0' * 64}"] = Object(b"layer", "0" * 32)
    s3.objects[f"{folder}{sign}"] = Object(b"{}", "0" * 32)
    prefix = f"{folder}blobs" if is_within else ""
    assert collect(prefix=prefix)[0] == set()
    gone, said = collect(prefix=prefix, unpublished=True)
    assert gone == set()
    assert said == [f"s3://{BUCKET}/{folder}blobs: left alone, blobs of an OCI image layout"]


def test_files_of_before_go_once_contents_took_their_place(s3, publish, collect, tmp_path):
    manifest = artifact(tmp_path / "here", {"rows": b"1", "gone": b"3"})
    for name, content in files(tmp_path / "here").items():
        s3.objects[f"{PREFIX}/{name}"] = Object(content, "0" * 32)
    assert collect() == (set(), [])
    assert s3_place(s3).fetch(tmp_path / "there") == manifest
    publish({"rows": b"2"})
    assert collect()[0] == {f"{PREFIX}/rows", f"{PREFIX}/gone"}


def test_what_is_no_artifact_is_left_alone(s3, publish, collect):
    others = {
        "runs/r17/steps/train/executor_output.json", "runs/profile.json", f"runs/x/{'0' * 64}",
        "elsewhere/sha256/" + "0" * 64, "runs/sha256/readme", "runs/sha256/deeper/" + "0" * 64,
        f"runs/sha256/{'0' * 64}/file", f"{PREFIX}-beside/sha256/notes",
    }  # fmt: skip
    for key in others:
        s3.objects[key] = Object(b"mine", "0" * 32)
    publish({"rows": b"1"})
    begin_upload(s3, "runs/somebody/else")
    assert collect() == (set(), [])
    assert len(s3.buckets[BUCKET].uploads) == 1
    everything = collect(prefix="", unpublished=True)
    assert everything[0] == {"elsewhere/sha256/" + "0" * 64}


def test_artifacts_unreadable_or_inside_another_are_left_alone(s3, publish, collect):
    publish({"rows": b"1"}, "runs/r17")
    publish({"rows": b"2"}, "runs/r17/knowledge")
    assert collect() == (set(), [])
    s3.objects["runs/r17/knowledge/manifest.json"] = Object(b"{}", "0" * 32)
    gone, said = collect()
    assert gone == set()
    assert "left alone" in said[0]


def test_a_young_manifest_keeps_what_it_replaced(s3, publish, collect):
    """Who reads the former artifact since before is still reading."""
    publish({"rows": b"1"})
    s3.objects[key_of(b"1")] = s3.objects[key_of(b"1")]._replace(
        modified=datetime.now(UTC) - timedelta(days=90)
    )
    publish({"rows": b"2"})
    assert collect(later=timedelta(days=1)) == (set(), [])


def test_a_prefix_that_another_collector_has_is_left_to_it(s3, publish, collect):
    publish({"rows": b"1"})
    publish({"rows": b"2"})
    now = datetime.now(UTC) + timedelta(days=30)
    s3.objects[MARK] = Object(b"of another", "0" * 32, now - timedelta(minutes=1))
    assert collect()[0] == set()
    s3.objects[MARK] = Object(b"of a killed one", "0" * 32, now - timedelta(hours=2))
    assert collect()[0] == {key_of(b"1")}
    assert s3.objects[MARK].content == b"", "the mark is over"


def test_an_age_under_a_day_is_refused(s3, collect):
    with pytest.raises(StorageError, match="1 day"):
        collect(age=timedelta(hours=23))
    short = open_collector(f"s3://{BUCKET}", s3.environment, kept_age=timedelta(hours=23))
    with pytest.raises(StorageError, match="1 day"):
        short.find(DEFAULT_AGE)


KEPT = "runs/kept/train/k"


@pytest.fixture
def keep(s3, tmp_path):
    """Keep an output for later runs."""

    def kept(contents, prefix=KEPT):
        folder = tmp_path / f"{len(s3.objects)}"
        artifact(folder, contents)
        ExpiringLocation(settings(s3), BUCKET, prefix).keep(folder)

    return kept


def test_what_is_kept_goes_when_nobody_has_used_it(s3, keep, publish, collect):
    keep({"rows": b"1", "both": b"0"})
    publish({"rows": b"1"})
    others = {key for key in s3.objects if not key.startswith(KEPT)}
    assert collect(later=timedelta(days=29)) == (set(), [])
    gone, said = collect(later=timedelta(days=31))
    assert said == [f"s3://{BUCKET}/{KEPT}: deleted 4 objects of 0.0 MB"]
    assert gone == {
        f"{KEPT}/manifest.json", f"{KEPT}/{KEPT_MARK}", key_of(b"1", KEPT), key_of(b"0", KEPT)
    }  # fmt: skip
    assert others <= s3.objects.keys()


def test_a_use_of_what_is_kept_counts_from_then_on(s3, keep, collect):
    keep({"rows": b"1"})
    for key, stored in s3.objects.items():
        s3.objects[key] = stored._replace(modified=stored.modified - timedelta(days=20))
    ExpiringLocation(settings(s3), BUCKET, KEPT).touch()
    assert collect(later=timedelta(days=29)) == (set(), [])
    assert collect(later=timedelta(days=31))[0]


def test_a_killed_keeping_goes_without_being_asked_for(s3, keep, collect):
    keep({"rows": b"1"})
    del s3.objects[f"{KEPT}/manifest.json"]
    assert collect(later=timedelta(days=6)) == (set(), [])
    assert collect(later=timedelta(days=8))[0] == {key_of(b"1", KEPT)}
    assert collect(later=timedelta(days=31))[0] == {f"{KEPT}/{KEPT_MARK}"}


def test_a_killed_deletion_leaves_nothing_that_looks_whole(s3, keep, collect):
    keep({"rows": b"1", "both": b"0"})

    answer = s3.answer

    def until_killed(stand_in, asked, body):
        if asked.command == "DELETE" and len(stand_in.objects) < 5:
            raise Refusal(403, "AccessDenied", "killed")
        return answer(stand_in, asked, body)

    s3.answer = until_killed
    with pytest.raises(StorageError):
        collect(later=timedelta(days=31))
    assert f"{KEPT}/manifest.json" not in s3.objects
    assert f"{KEPT}/{KEPT_MARK}" in s3.objects
    s3.answer = answer
    collect(later=timedelta(days=31))
    assert set(s3.objects) == {f"{KEPT}/{COLLECTING}"}


@pytest.mark.parametrize("uri", ["runs", "s3://", "s3://UP/x", "gs://bucket/x"])
def test_a_uri_without_a_bucket_is_refused(s3, uri):
    with pytest.raises(StorageError, match="s3://BUCKET"):
        open_collector(uri, s3.environment)


def test_the_commands_fetch_and_collect(s3, publish, tmp_path):
    publish({"rows": b"1"})
    s3.objects[f"{PREFIX}/{object_name('0' * 64)}"] = Object(b"1" * 10**6, "0" * 32)
    s3.objects[f"{PREFIX}/manifest.json"] = s3.objects[f"{PREFIX}/manifest.json"]._replace(
        modified=datetime.now(UTC) - timedelta(days=90)
    )
    uri = f"s3://{BUCKET}/{PREFIX}"

    def run(*words):
        done = CliRunner(env=s3.environment).invoke(command_line(), ["data", *words])
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    fetched = run("fetch", uri, "--out", str(tmp_path / "there"))
    assert fetched == [s3_place(s3).manifest().content]
    assert files(tmp_path / "there").keys() == {"manifest.json", "rows"}
    assert run("collect", f"s3://{BUCKET}", "--dry-run") == [f"{uri}: 1 objects of 1.0 MB"]
    assert run("collect", f"s3://{BUCKET}/runs") == [
        f"{uri}: deleted 1 objects of 1.0 MB", "freed 1.0 MB",
    ]  # fmt: skip
    assert run("collect", f"s3://{BUCKET}/runs", "--older-than", "1") == ["freed 0.0 MB"]
    ExpiringLocation(settings(s3), BUCKET, KEPT).touch()
    mark = f"{KEPT}/{KEPT_MARK}"
    touched = s3.objects[mark].modified
    s3.objects[mark] = s3.objects[mark]._replace(modified=touched - timedelta(days=9))
    assert run("collect", f"s3://{BUCKET}/runs/kept") == ["freed 0.0 MB"]
    run("collect", f"s3://{BUCKET}/runs/kept", "--kept-older-than", "8")
    assert mark not in s3.objects
    old = s3.objects.pop(f"{PREFIX}/manifest.json").modified
    s3.objects[key_of(b"1")] = s3.objects[key_of(b"1")]._replace(modified=old)
    (said,) = run("collect", f"s3://{BUCKET}", "--dry-run")
    assert "no manifest" in said
    assert run("collect", f"s3://{BUCKET}", "--dry-run", "--unpublished") == [
        f"{uri}: 1 objects of 0.0 MB"
    ]
    assert run("collect", f"s3://{BUCKET}", "--unpublished")[-1] == "freed 0.0 MB"
    assert key_of(b"1") not in s3.objects
