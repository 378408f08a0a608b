import json

import pytest

from espalier.records import (
    ArtifactError,
    Provenance,
    open_artifact,
    publishing,
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


SCORES = "index/scores"


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (SCORES, bytes(256), r"knowledge/index/scores: .*bytes"),
        (SCORES, bytes(range(100)), r"knowledge/index/scores: .*truncated"),
        (SCORES, None, r"knowledge/index/scores: .*not there"),
        ("index/scores.bak", b"", r"knowledge/index/scores\.bak: "),
        ("run.json", b'{"seconds": 0.1}', r"run\.json: .*bytes"),
        ("manifest.json", None, r"manifest\.json"),
        ("manifest.json", b"{", r"manifest\.json"),
        ("manifest.json", b"\xff{}", r"manifest\.json"),
    ],
)
def test_a_harmed_artifact_is_refused_and_the_file_is_named(artifact, name, content, complaint):
    (artifact / name).unlink(missing_ok=True)
    if content is not None:
        (artifact / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=complaint):
        open_artifact(artifact)


@pytest.mark.parametrize(
    ("field", "complaint"), [({"integrity": "0" * 64}, "edited"), ({"colour": "red"}, "schema 1")]
)
def test_a_manifest_that_was_edited_is_refused(artifact, field, complaint):
    path = artifact / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    with pytest.raises(ArtifactError, match=complaint):
        open_artifact(artifact)
