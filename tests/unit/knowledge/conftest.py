import json
from pathlib import Path

import pytest

from espalier.config import KnowledgeConfig, Profile
from espalier.records import NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest as stage

FEW_CITIES = Profile(seed=3, knowledge=KnowledgeConfig(max_cities=2500))

DOCUMENTS = {
    "ada.md": "# Ada Lovelace\n\nShe wrote notes on the engine. They were published in 1843.\n",
    "babbage.txt": "Charles Babbage designed the engine.\n",
}
TRIPLES = [
    ("Ada Lovelace", "born_in", "London", "person", "city"),
    ("Ada Lovelace", "friend", "Charles Babbage", "person", "person"),
    ("Ada Lovelace", "friend", "Mary Somerville", "person", "person"),
    ("Charles Babbage", "born_in", "London", "person", "city"),
    ("Mary Somerville", "born_in", "Jedburgh", "person", "city"),
    ("Alan Turing", "born_in", "London", "person", "city"),
]


@pytest.fixture(scope="session")
def geonames_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("geonames") / "knowledge"
    stage.run(FEW_CITIES, {}, directory, NullTracker())
    return directory


@pytest.fixture(scope="session")
def geonames_graph(geonames_dir) -> KnowledgeGraph:
    return KnowledgeGraph.load(geonames_dir)


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "texts"
    path.mkdir()
    for name, text in DOCUMENTS.items():
        (path / name).write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def triples_file(tmp_path) -> Path:
    keys = ("subject", "relation", "object", "subject_type", "object_type")
    rows = [json.dumps(dict(zip(keys, row, strict=True))) for row in TRIPLES]
    path = tmp_path / "triples.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
