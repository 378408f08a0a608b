import json

import pytest

from espalier.config import KnowledgeConfig, Profile, SearchConfig
from espalier.records import KnowledgeError, NullTracker
from espalier.records.knowledge import KnowledgeGraph, load_documents
from espalier.stages import ingest as stage
from espalier_search.knowledge import SearchTool
from espalier_search.knowledge.search import documents_path
from espalier_search.knowledge.sources import lines_of
from espalier_search.knowledge.user_sources import load_own
from espalier_search.knowledge.views import without_triple_lines


def _config(folder, **paths):
    if not paths:
        paths = {"questions": folder.parent / "questions.jsonl"}
        row = json.dumps({"question": "Who?", "answer": "Babbage"})
        paths["questions"].write_text(row)
    return KnowledgeConfig(source="folder", path=folder, **paths)


def test_texts_and_json_lines_become_titled_documents(folder):
    rows = [{"title": "A", "text": "One. Two."}, {"id": "x", "title": "B", "contents": "Three"}]
    (folder / "more.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    documents = {d.document_id: d for d in load_own(_config(folder)).documents}
    assert documents["document:ada.md"].title == "Ada Lovelace"
    assert documents["document:ada.md"].lines == (
        "She wrote notes on the engine.",
        "They were published in 1843.",
    )
    assert documents["document:babbage.txt"].title == "babbage"
    assert documents["document:more.jsonl:1"].lines == ("One.", "Two.")
    assert documents["document:x"].title == "B"


def test_the_header_of_a_table_is_noted(folder):
    (folder / "towns.csv").write_text("town,country\nLyon,France\n")
    (note,) = load_own(_config(folder)).notes
    assert "towns.csv (town, country)" in note


def test_long_lines_are_cut_at_thirty_words():
    assert [len(line.split()) for line in lines_of("word " * 65)] == [30, 30, 5]


def test_a_folder_without_documents_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(KnowledgeError, match=r"empty: .*\.md"):
        load_own(_config(tmp_path / "empty"))
    with pytest.raises(KnowledgeError, match="away"):
        load_own(_config(tmp_path / "away"))


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2"), ("[1]", "line 2"), ('{"title": "t"}', "'text'"),
     ('{"title": 3, "text": "t"}', "'title'"), ('{"id": "x", "title": "t", "text": "u"}', "'x'")],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(folder, line, message):
    first = '{"id": "x", "title": "t", "text": "u"}\n'
    (folder / "rows.jsonl").write_text(f"{first}{line}\n")
    with pytest.raises(KnowledgeError, match=message):
        load_own(_config(folder))


def test_undecodable_files_and_missing_answers_are_named(folder, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Who?", "answer": []}\n')
    with pytest.raises(KnowledgeError, match="line 1: 'answer'"):
        load_own(_config(folder, questions=path))
    (folder / "old.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(KnowledgeError, match=r"old\.txt: .*byte 3"):
        load_own(_config(folder))


def test_triples_become_typed_entities_and_relations(folder, triples_file):
    source = load_own(_config(folder, triples=triples_file))
    relations = {relation.name: relation for relation in source.relations}
    born = relations["born_in"]
    assert (born.label, born.subject_kind, born.object_kind) == ("born in", "person", "city")
    assert born.functional
    assert not relations["friend"].functional
    entities = {entity.name: entity for entity in source.entities}
    assert entities["London"].hub
    assert entities["Jedburgh"].region == entities["Mary Somerville"].entity_id
    assert source.entity_documents["person:ada lovelace"] == "document:ada.md"


def test_a_relation_between_other_kinds_is_a_separate_relation(folder, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [("a", "in", "b", "city", "land"), ("b", "in", "c", "land", "planet")]
    keys = ("subject", "relation", "object", "subject_type", "object_type")
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    relations = load_own(_config(folder, triples=path)).relations
    assert {r.name: r.label for r in relations} == {"in": "in", "in (land to planet)": "in"}


def test_only_documents_without_a_text_are_lines_of_triples(folder, triples_file, tmp_path):
    profile = Profile(knowledge=_config(folder, triples=triples_file))
    out = tmp_path / "knowledge"
    stage.run(profile, {}, out, NullTracker())
    found = {one.title: one.lines for one in load_documents(documents_path(out, "full"))}
    assert found["Ada Lovelace"] == (
        "She wrote notes on the engine.",
        "They were published in 1843.",
    )
    assert found["Mary Somerville"] == ("born in: Jedburgh",)
    assert found["Alan Turing"] == ("born in: London",)


def test_added_lines_can_be_left_out_again(folder, triples_file, tmp_path):
    (folder / "turing.md").write_text("# Alan Turing\n\nborn in: London\n\nborn in: Paris\n")
    found = {}
    for lines in (True, False):
        out = tmp_path / str(lines)
        config = _config(folder, triples=triples_file, triple_lines=lines)
        stage.run(Profile(knowledge=config), {}, out, NullTracker())
        found[lines] = load_documents(documents_path(out, "full"))
    assert found[True] != found[False]
    assert without_triple_lines(found[True], KnowledgeGraph.load(out)) == found[False]
    said = {one.title: one.lines for one in found[False]}
    assert said["Alan Turing"] == ("born in: London", "born in: Paris")


def test_every_user_triple_can_be_read_and_found(folder, triples_file, tmp_path):
    profile = Profile(knowledge=_config(folder, triples=triples_file, triple_lines=True))
    out = tmp_path / "knowledge"
    stage.run(profile, {}, out, NullTracker())
    graph, search = KnowledgeGraph.load(out), SearchTool.open(out, "full", SearchConfig())
    for subject, relation, object_ in graph.triples():
        lines = search.document(graph.entities[subject].document_id).lines
        label = graph.relations[relation].label
        (line,) = [line for line in lines if line.startswith(f"{label}: ")]
        assert graph.entities[object_].name in line
    assert search.observation("Ada Lovelace born in") == "Ada Lovelace | born in: London"
    assert search.observation("Ada Lovelace notes").startswith("Ada Lovelace | She wrote notes")
