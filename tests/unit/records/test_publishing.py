import os
import resource
from contextlib import contextmanager

import pytest

from espalier.records import (
    ArtifactError,
    Provenance,
    open_artifact,
    publishing,
    work_dir,
)

PROVENANCE = Provenance(producer="ingest", config_digest="c0", seed=3, inputs={"knowledge": "ab"})


def _publish(directory, **files):
    with publishing(directory, PROVENANCE) as draft:
        for name, text in files.items():
            (draft.path / name).write_text(text)
        draft.rows["lines"] = len(files)
    return draft.published


def _give_up_half_way(directory):
    with publishing(directory, PROVENANCE) as draft:
        (draft.path / "triples").write_text("half of i")
        raise ZeroDivisionError


def _interrupt(directory):
    with publishing(directory, PROVENANCE):
        raise KeyboardInterrupt


def _fill_the_disk_at(directory, name):
    with publishing(directory, PROVENANCE) as draft:
        # every write through it fails as one on a full disk does
        (draft.path / name).symlink_to("/dev/full")
        if name != "manifest.json":
            (draft.path / name).write_text("d e f")


@contextmanager
def _largest_file(num_bytes):
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_an_artifact_appears_by_one_rename(tmp_path):
    with publishing(tmp_path / "knowledge", PROVENANCE) as draft:
        (draft.path / "triples").write_text("a b c")
        written = draft.path.stat().st_ino
        assert not (tmp_path / "knowledge").exists()
    assert (tmp_path / "knowledge").stat().st_ino == written
    assert open_artifact(tmp_path / "knowledge") == draft.published


def test_a_manifest_says_what_was_made_and_from_what(tmp_path):
    manifest = _publish(tmp_path / "knowledge", triples="a b c", relations="r")
    assert manifest.producer == "ingest"
    assert manifest.inputs == {"knowledge": "ab"}
    assert manifest.rows == {"lines": 2}
    assert sorted(manifest.files) == ["relations", "triples"]


@pytest.mark.parametrize(
    ("attempt", "error"),
    [(_give_up_half_way, ZeroDivisionError), (_interrupt, KeyboardInterrupt)],
)
def test_an_error_leaves_nothing_behind(tmp_path, attempt, error):
    with pytest.raises(error):
        attempt(tmp_path / "knowledge")
    assert list(tmp_path.iterdir()) == []


def test_an_error_does_not_touch_the_former_artifact(tmp_path):
    former = _publish(tmp_path / "knowledge", triples="a b c")
    with pytest.raises(ZeroDivisionError):
        _give_up_half_way(tmp_path / "knowledge")
    assert open_artifact(tmp_path / "knowledge") == former


def test_a_new_artifact_takes_the_place_of_the_former_one(tmp_path):
    _publish(tmp_path / "knowledge", triples="a b c", old="x")
    _publish(tmp_path / "knowledge", triples="d e f")
    assert sorted(open_artifact(tmp_path / "knowledge").files) == ["triples"]
    assert [path.name for path in tmp_path.iterdir()] == ["knowledge"]


def test_leftovers_of_a_killed_run_are_not_published(tmp_path):
    left = tmp_path / ".knowledge.draft"
    left.mkdir()
    (left / "rubbish").write_text("half")
    assert sorted(_publish(tmp_path / "knowledge", triples="a b c").files) == ["triples"]


def test_checkpoints_go_when_the_artifact_is_there(tmp_path):
    checkpoints = work_dir(tmp_path / "knowledge")
    checkpoints.mkdir()
    (checkpoints / "latest.pt").write_bytes(b"weights")
    _publish(tmp_path / "knowledge", triples="a b c")
    assert not checkpoints.exists()


def test_checkpoints_outlive_an_error(tmp_path):
    checkpoints = work_dir(tmp_path / "knowledge")
    checkpoints.mkdir()
    with pytest.raises(ZeroDivisionError):
        _give_up_half_way(tmp_path / "knowledge")
    assert checkpoints.is_dir()


def test_a_draft_has_no_manifest_before_it_is_published(tmp_path):
    with (
        publishing(tmp_path / "knowledge", PROVENANCE) as draft,
        pytest.raises(ArtifactError, match="published"),
    ):
        _ = draft.published
    assert draft.published.seed == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's full device")
@pytest.mark.parametrize("name", ["triples", "manifest.json"])
def test_a_full_disk_is_named_and_nothing_is_half_published(tmp_path, name):
    former = _publish(tmp_path / "knowledge", triples="a b c")
    with pytest.raises(ArtifactError, match=r"knowledge: .*disk"):
        _fill_the_disk_at(tmp_path / "knowledge", name)
    assert open_artifact(tmp_path / "knowledge") == former
    assert [path.name for path in tmp_path.iterdir()] == ["knowledge"]


def test_a_write_that_the_system_cuts_short_publishes_nothing(tmp_path):
    with pytest.raises(ArtifactError, match="knowledge"), _largest_file(1024):
        _publish(tmp_path / "knowledge", triples="a b c" * 1000)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "out").write_text("a file stands where the folder should be")
    with pytest.raises(ArtifactError, match="out/knowledge: "):
        _publish(tmp_path / "out" / "knowledge", triples="a b c")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_named_with_the_remedy(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="--out"):
        _publish(tmp_path / "knowledge", triples="a b c")
    tmp_path.chmod(0o700)
