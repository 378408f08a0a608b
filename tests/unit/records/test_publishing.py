import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from espalier.chain import CHAIN
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
    return draft.published


def _give_up_half_way(directory, error):
    with publishing(directory, PROVENANCE) as draft:
        (draft.path / "triples").write_text("half of i")
        raise error


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


def test_an_artifact_appears_by_one_rename_and_describes_itself(tmp_path):
    with publishing(tmp_path / "knowledge", PROVENANCE) as draft:
        (draft.path / "triples").write_text("a b c")
        draft.rows["lines"] = 1
        written = draft.path.stat().st_ino
        assert not (tmp_path / "knowledge").exists()
        with pytest.raises(ArtifactError, match="published"):
            _ = draft.published
    assert (tmp_path / "knowledge").stat().st_ino == written
    manifest = open_artifact(tmp_path / "knowledge")
    assert manifest == draft.published
    assert (manifest.producer, manifest.seed, manifest.inputs) == ("ingest", 3, {"knowledge": "ab"})
    assert (manifest.rows, list(manifest.files)) == ({"lines": 1}, ["triples"])


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_leaves_the_former_artifact_and_checkpoints_alone(tmp_path, error):
    with pytest.raises(error):
        _give_up_half_way(tmp_path / "knowledge", error)
    assert list(tmp_path.iterdir()) == []
    former = _publish(tmp_path / "knowledge", triples="a b c")
    work_dir(tmp_path / "knowledge").mkdir()
    with pytest.raises(error):
        _give_up_half_way(tmp_path / "knowledge", error)
    assert open_artifact(tmp_path / "knowledge") == former
    assert work_dir(tmp_path / "knowledge").is_dir()


def test_a_new_artifact_replaces_the_former_and_all_leftovers(tmp_path):
    _publish(tmp_path / "knowledge", triples="a b c", old="x")
    for left in (tmp_path / ".knowledge.draft", work_dir(tmp_path / "knowledge")):
        left.mkdir()
        (left / "rubbish").write_text("half")
    _publish(tmp_path / "knowledge", triples="d e f")
    assert sorted(open_artifact(tmp_path / "knowledge").files) == ["triples"]
    assert [path.name for path in tmp_path.iterdir()] == ["knowledge"]


def _own_file(place):
    place.write_text("mine")


def _own_folder(place):
    place.mkdir()
    (place / "thesis.txt").write_text("mine")


def _web_app(place):
    _own_folder(place)
    (place / "manifest.json").write_text('{"name": "app", "icons": []}')


def _damaged_artifact(place):
    _own_folder(place)
    (place / "manifest.json").write_text('{"schema_version": 1, "prod')


def _dangling_link(place):
    place.symlink_to("nowhere")


OWN_PLACES = [_own_file, _own_folder, _web_app, _damaged_artifact, _dangling_link]


@pytest.mark.parametrize("make", OWN_PLACES)
def test_what_no_stage_wrote_is_not_replaced(tmp_path, make):
    make(tmp_path / "mine")
    before = _tree(tmp_path)
    ran = []
    with (
        pytest.raises(ArtifactError, match=r"mine: .*--out"),
        publishing(tmp_path / "mine", PROVENANCE),
    ):
        ran.append("an hour of work")
    assert (ran, _tree(tmp_path)) == ([], before)


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_a_stage_refuses_such_a_folder_before_its_work(tmp_path, stage):
    _own_folder(tmp_path / "mine")
    with pytest.raises(ArtifactError, match=r"mine: .*--out"):
        stage.run(None, {}, tmp_path / "mine", None)


def test_what_is_put_there_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(ArtifactError, match="mine"), publishing(tmp_path / "mine", PROVENANCE):
        _own_folder(tmp_path / "mine")
    assert _tree(tmp_path) == {"mine": None, "mine/thesis.txt": "mine"}


@pytest.mark.parametrize("name", [".", "..", "", "a/.."])
def test_a_folder_without_a_name_of_its_own_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="--out"):
        _publish(Path(name), triples="a b c")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "knowledge").mkdir()
    _publish(tmp_path / "knowledge", triples="a b c")
    assert "triples" in open_artifact(tmp_path / "knowledge").files


def _tree(folder):
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in folder.rglob("*")
    }


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
