import shutil
import time

import pytest

from espalier.config import SearchConfig
from espalier.environments.text_index import TextIndex
from espalier.records import ArtifactError
from espalier.records.knowledge import Document, load_documents
from espalier_search.knowledge import SearchTool
from espalier_search.knowledge.search import documents_path


@pytest.fixture(scope="module")
def search(geonames_dir):
    return SearchTool.open(geonames_dir, "full", SearchConfig())


def test_every_triple_is_readable_in_its_subjects_full_document(search, geonames_graph):
    for subject, relation, object_ in geonames_graph.triples():
        document_id = geonames_graph.entities[subject].document_id
        label = geonames_graph.relations[relation].label
        lines = dict(line.split(": ", 1) for line in search.document(document_id).lines)
        assert geonames_graph.entities[object_].name in lines[label].split("; ")


def test_the_train_view_shows_exactly_train_and_hub_triples(geonames_dir, geonames_graph):
    documents = load_documents(documents_path(geonames_dir, "train"))
    lines = {
        (document.document_id, *line.split(": ", 1))
        for document in documents
        for line in document.lines
    }
    shown = {(doc, label, name) for doc, label, names in lines for name in names.split("; ")}
    seen = ("train", "hub")
    for subject, relation, object_ in geonames_graph.triples():
        start, end = geonames_graph.entities[subject], geonames_graph.entities[object_]
        label = geonames_graph.relations[relation].label
        visible = start.split in seen and end.split in seen
        assert ((start.document_id, label, end.name) in shown) == visible


@pytest.mark.parametrize("query", ["{name} {label}", "{label} of {name}"])
def test_a_name_with_a_label_finds_the_entitys_own_document(search, geonames_graph, query):
    asked = [
        (geonames_graph.entities[triple.subject], triple)
        for triple in geonames_graph.triples()
        if geonames_graph.entities[triple.subject].askable
    ][::5]
    found = answered = 0
    for entity, triple in asked:
        label = geonames_graph.relations[triple.relation].label
        (hit,) = search.search(query.format(name=entity.name, label=label))
        found += hit.document_id == entity.document_id
        answered += geonames_graph.entities[triple.object].name in hit.snippet
    assert found >= 0.97 * len(asked)
    assert answered >= 0.97 * len(asked)


def test_an_observation_is_the_title_and_the_lines_that_match(search, geonames_dir):
    assert search.observation("time zone of Paris") == "Paris | time zone: Europe/Paris"
    assert search.observation("SAO PAULO country") == "São Paulo | country: Brazil"
    assert search.observation("France") == "France | capital: Paris | largest city: Paris"
    config = SearchConfig(top_k=5, snippet_lines=4, max_observation_words=12)
    several = SearchTool.open(geonames_dir, "full", config)
    assert len(several.search("San Juan")) == 5
    assert len(several.observation("San Juan").split()) == 12
    two = SearchTool.open(geonames_dir, "full", SearchConfig(top_k=2, snippet_lines=1))
    assert two.observation("Paris France").count(" || ") == 1


def test_a_query_without_a_known_word_has_no_results(search):
    assert search.search("qqzzxx") == ()
    assert search.observation("qqzzxx") == "no results"
    assert search.observation("") == "no results"


def test_the_train_view_knows_no_heldout_document(geonames_dir, geonames_graph):
    tool = SearchTool.open(geonames_dir, "train", SearchConfig())
    heldout = [e for e in geonames_graph.entities.values() if e.split == "heldout" and e.askable]
    for entity in heldout[:300]:
        assert all(hit.title != entity.name for hit in tool.search(entity.name))


@pytest.mark.parametrize(
    "name",
    ["documents.parquet", "index/full/data.csc.index.npy", "index/full/indptr.csc.index.npy",
     "index/full/vocab.index.json", "index/full/params.index.json"],
)  # fmt: skip
def test_a_truncated_or_missing_file_is_named(geonames_dir, tmp_path, name):
    copy = tmp_path / "knowledge"
    shutil.copytree(geonames_dir, copy)
    path = copy / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ArtifactError, match=path.name):
        SearchTool.open(copy, "full", SearchConfig())
    path.unlink()
    with pytest.raises(ArtifactError, match=path.name):
        SearchTool.open(copy, "full", SearchConfig())


def test_an_index_of_other_documents_is_refused(geonames_dir, tmp_path):
    copy = tmp_path / "knowledge"
    shutil.copytree(geonames_dir, copy)
    shutil.copy(copy / "index/train/documents.parquet", copy / "documents.parquet")
    with pytest.raises(ArtifactError, match="documents"):
        SearchTool.open(copy, "full", SearchConfig())


def _found(query, **documents):
    """Titles that `query` finds, best first."""
    listed = [
        Document(title, title.replace("_", " "), lines, "train")
        for title, lines in documents.items()
    ]
    tool = SearchTool(listed, TextIndex.build(listed), SearchConfig(top_k=4))
    return [hit.title for hit in tool.search(query)]


COUNTRIES = {
    "Hungary": ("neighbours: Austria; Croatia; Slovakia", "capital: Budapest"),
    "Croatia": ("neighbours: Hungary; Slovenia",),
    "Slovakia": ("neighbours: Austria; Hungary; Poland",),
    "Austria": ("neighbours: Hungary; Slovakia",),
    "New_Guinea": ("neighbours: Guinea Bissau",),
    "Guinea_Bissau": ("neighbours: New Guinea; Senegal",),
}


def test_only_a_document_that_mentions_both_titles_whole_is_found():
    assert _found("Croatia Slovakia neighbours", **COUNTRIES)[0] == "Hungary"
    assert _found("Slovakia neighbours", **COUNTRIES)[0] == "Slovakia"
    assert _found("Croatia Senegal neighbours", **COUNTRIES)[0] == "Croatia"
    apart = {**COUNTRIES, "Elsewhere": ("a new road to Guinea, and to Croatia",)}
    assert _found("New Guinea Croatia", **apart)[0] in ("New Guinea", "Croatia")
    across = {**COUNTRIES, "Elsewhere": ("Croatia, and all that is new", "Guinea")}
    assert _found("New Guinea Croatia", **across)[0] in ("New Guinea", "Croatia")


def test_a_part_of_a_longer_title_is_no_mention():
    documents = {
        "Guinea": ("neighbours: Guinea-Bissau; Mali",),
        "Guinea-Bissau": ("neighbours: Guinea; Senegal",),
        "Senegal": ("neighbours: Mali",),
        "Gambia": ("neighbours: Guinea-Bissau; Senegal",),
    }
    assert _found("Guinea Senegal neighbours", **documents)[0] == "Guinea-Bissau"
    del documents["Guinea-Bissau"]
    assert _found("Guinea Senegal neighbours", **documents)[0] == "Gambia"


@pytest.mark.parametrize("documents_of_a_name", [1, 2])
def test_a_query_of_thousands_of_names_takes_little_time(documents_of_a_name):
    names = [f"town{number:04}" for number in range(3000)]
    towns = [
        Document(f"{name} {place}", name, (f"land: {place}",), "train")
        for name in names
        for place in range(documents_of_a_name)
    ]
    lines = tuple(" ".join(names[start : start + 50]) for start in range(0, len(names), 50))
    lists = [Document(f"list {number}", f"List {number}", lines, "train") for number in range(20)]
    index = TextIndex.build([*towns, *lists])
    started = time.perf_counter()
    found = index.rank(" ".join(names * 3), 5)
    assert time.perf_counter() - started < 3, "it takes a tenth of a second"
    assert found
