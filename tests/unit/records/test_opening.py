import json

import pytest

from espalier.records import (
    ArtifactError,
    Provenance,
    open_artifact,
    publishing,
    read_manifest,
)

PROVENANCE = Provenance(producer="ingest", config_digest="c0", seed=3)


@pytest.fixture
def artifact(tmp_path):
    with publishing(tmp_path / "knowledge", PROVENANCE) as draft:
        (draft.path / "index").mkdir()
        (draft.path / "index" / "scores").write_bytes(bytes(range(256)))
        (draft.path / "triples").write_text("a b c")
        (draft.path / "run.json").write_text('{"seconds": 1.5}')
    return tmp_path / "knowledge"


def _edit(path):
    path.write_bytes(path.read_bytes().replace(b"\x07", b"\x08"))


def _truncate(path):
    path.write_bytes(path.read_bytes()[:100])


def _remove(path):
    path.unlink()


def _add_beside(path):
    path.with_name("scores.bak").write_bytes(b"")


def _change_measured_times(path):
    (path.parents[1] / "run.json").write_text('{"seconds": 0.1}')


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (_edit, r"knowledge/index/scores: .*bytes"),
        (_truncate, r"knowledge/index/scores: .*truncated"),
        (_remove, r"knowledge/index/scores: .*not there"),
        (_add_beside, r"knowledge/index/scores\.bak: "),
        (_change_measured_times, r"run\.json: .*bytes"),
    ],
)
def test_a_harmed_artifact_is_refused_and_the_file_is_named(artifact, harm, complaint):
    harm(artifact / "index" / "scores")
    with pytest.raises(ArtifactError, match=complaint):
        open_artifact(artifact)


def test_a_digest_edited_in_the_manifest_is_noticed(artifact):
    path = artifact / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"integrity": "0" * 64}))
    with pytest.raises(ArtifactError, match=r"manifest\.json: .*edited"):
        open_artifact(artifact)


def test_a_folder_without_a_manifest_was_never_published(tmp_path):
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        open_artifact(tmp_path)


@pytest.mark.parametrize("harm", [lambda raw: raw[:40], lambda raw: b"\xff" + raw])
def test_an_unreadable_manifest_is_named_with_the_remedy(artifact, harm):
    path = artifact / "manifest.json"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        read_manifest(artifact)


def test_a_manifest_with_an_unknown_field_is_refused(artifact):
    path = artifact / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    with pytest.raises(ArtifactError, match="schema 1"):
        read_manifest(artifact)
