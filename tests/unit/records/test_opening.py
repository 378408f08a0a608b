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


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (_edit, r"knowledge/index/scores: its bytes are not those that were published"),
        (_truncate, r"knowledge/index/scores: its bytes .* \(truncated or edited\)"),
        (_remove, r"knowledge/index/scores: in the manifest, but not there"),
        (_add_beside, r"knowledge/index/scores\.bak: not named in the manifest"),
    ],
)
def test_a_harmed_artifact_is_refused_and_the_file_is_named(artifact, harm, complaint):
    harm(artifact / "index" / "scores")
    with pytest.raises(ArtifactError, match=complaint):
        open_artifact(artifact)


def test_measured_times_are_guarded_as_well(artifact):
    (artifact / "run.json").write_text('{"seconds": 0.1}')
    with pytest.raises(ArtifactError, match=r"run\.json: its bytes are not those"):
        open_artifact(artifact)


def test_a_digest_edited_in_the_manifest_is_noticed(artifact):
    path = artifact / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"integrity": "0" * 64}))
    with pytest.raises(ArtifactError, match=r"manifest\.json: edited after publishing"):
        open_artifact(artifact)


def test_a_folder_without_a_manifest_was_never_published(tmp_path):
    with pytest.raises(ArtifactError, match=r"no manifest\.json, so no stage finished"):
        open_artifact(tmp_path)


@pytest.mark.parametrize("harm", [lambda raw: raw[:40], lambda raw: b"\xff" + raw])
def test_an_unreadable_manifest_is_named_with_the_remedy(artifact, harm):
    path = artifact / "manifest.json"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ArtifactError, match=r"manifest\.json: not a manifest .* run the stage"):
        read_manifest(artifact)


def test_a_manifest_with_an_unknown_field_is_refused(artifact):
    path = artifact / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    with pytest.raises(ArtifactError, match="not a manifest of schema 1"):
        read_manifest(artifact)
