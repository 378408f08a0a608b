import json
import os
import subprocess
import sys

import pytest

from espalier.config import KnowledgeConfig, Profile
from espalier.records import ArtifactError, NullTracker, open_artifact
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest as stage
from tests.unit.knowledge.conftest import FEW_CITIES

_RUN = """
import sys
from pathlib import Path
from espalier.records import NullTracker
from espalier.config import Profile
from espalier.stages import ingest as stage
profile = Profile.model_validate_json(sys.argv[1])
print(stage.run(profile, {}, Path(sys.argv[2]), NullTracker()).content)
"""


@pytest.mark.slow
def test_equal_profiles_write_equal_bytes_in_another_process(geonames_dir, tmp_path):
    command = [sys.executable, "-c", _RUN, FEW_CITIES.model_dump_json(), str(tmp_path / "again")]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.strip() == open_artifact(geonames_dir).content


def test_the_artifact_is_described_and_common_names_not_askable(geonames_dir, geonames_graph):
    manifest = open_artifact(geonames_dir)
    assert manifest.rows["train_documents"] < manifest.rows["full_documents"]
    assert "CC BY 4.0" in (geonames_dir / "attribution.txt").read_text()
    common = set(json.loads((geonames_dir / "names.json").read_text())["common_names"])
    assert len(common) == manifest.rows["common_names"]
    askable = {e.name.lower() for e in geonames_graph.entities.values() if e.askable}
    assert not common & askable


def test_a_loaded_graph_equals_the_saved_one(geonames_graph, tmp_path):
    geonames_graph.save(tmp_path)
    loaded = KnowledgeGraph.load(tmp_path)
    assert loaded.entities == geonames_graph.entities
    assert loaded.relations == geonames_graph.relations
    assert list(loaded.triples()) == list(geonames_graph.triples())
    (tmp_path / "relations.json").write_text("[{")
    with pytest.raises(ArtifactError, match=r"relations\.json"):
        KnowledgeGraph.load(tmp_path)


def test_a_folder_run_holds_questions_with_their_evidence(folder, tmp_path):
    questions = tmp_path / "questions.jsonl"
    rows = [
        {"question": "When were the notes on the engine published?", "answer": "1843"},
        {"question": "Who designed the engine?", "answer": ["Babbage", "C. Babbage"]},
        {"question": "Who won the race?", "answer": "nobody at all"},
    ]
    questions.write_text("\n".join(json.dumps(row) for row in rows))
    config = KnowledgeConfig(source="folder", path=folder, questions=questions)
    out = tmp_path / "knowledge"
    manifest = stage.run(Profile(knowledge=config), {}, out, NullTracker())
    kept = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    assert [row["document_id"] for row in kept] == ["document:ada.md", "document:babbage.txt"]
    assert kept[1]["answers"] == ["Babbage", "C. Babbage"]
    assert {row["split"] for row in kept} <= {"train", "dev", "heldout"}
    assert manifest.rows["questions_dropped"] == 1
    dropped = json.loads((out / "questions_dropped.json").read_text())
    assert dropped["first_without_evidence"] == ["Who won the race?"]


def test_every_own_question_and_triple_is_kept_or_counted(folder, triples_file, tmp_path):
    rows = [
        {"question": "Who wrote notes on the engine?", "answer": "Ada Lovelace"},
        {"question": "Who wrote notes on the engine?", "answer": "Ada  Lovelace"},
        {"question": "Who wrote notes on the engine?", "answer": "Charles Babbage"},
        {"question": "Who designed the engine?", "answer": "Nobody"},
    ]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(json.dumps(row) for row in rows))
    triples = triples_file.read_text()
    triples_file.write_text(triples + triples.splitlines()[0])
    config = KnowledgeConfig(
        source="folder", path=folder, questions=questions, triples=triples_file
    )
    out = tmp_path / "knowledge"
    counts = stage.run(Profile(knowledge=config), {}, out, NullTracker()).rows
    once = [f"questions{what}" for what in ("", "_dropped", "_repeated", "_contradicted")]
    assert {name: counts[name] for name in counts if name.startswith(("questions", "triples"))} == {
        **dict.fromkeys((*once, "triples_repeated"), 1),
        "triples": 6,
    }
