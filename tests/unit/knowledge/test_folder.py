import json

import pytest

from espalier.config import KnowledgeConfig, Profile, SearchConfig
from espalier.records import KnowledgeError, NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest as stage
from espalier_search.knowledge import SearchTool
from espalier_search.knowledge.sources import lines_of
from espalier_search.knowledge.user_sources import load_own


def _config(folder, **paths):
    if not paths:
        paths = {"questions": folder.parent / "questions.jsonl"}
        row = json.dumps({"question": "Who?", "answer": "Babbage"})
        paths["questions"].write_text(row)
    return KnowledgeConfig(source="folder", path=folder, **paths)


def test_a_text_file_is_titled_by_heading_or_name(folder):
    documents = {d.document_id: d for d in load_own(_config(folder)).documents}
    assert documents["document:ada.md"].title == "Ada Lovelace"
    assert documents["document:ada.md"].lines == (
        "She wrote notes on the engine.",
        "They were published in 1843.",
    )
    assert documents["document:babbage.txt"].title == "babbage"


def test_each_json_line_is_a_document(folder):
    rows = [{"title": "A", "text": "One. Two."}, {"id": "x", "title": "B", "contents": "Three"}]
    (folder / "more.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    documents = {d.document_id: d for d in load_own(_config(folder)).documents}
    assert documents["document:more.jsonl:1"].lines == ("One.", "Two.")
    assert documents["document:x"].title == "B"


def test_long_lines_are_cut_at_thirty_words():
    assert [len(line.split()) for line in lines_of("- word " * 1 + "word " * 64)] == [30, 30, 5]


def test_a_folder_without_documents_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(KnowledgeError, match=r"empty: .*\.md"):
        load_own(_config(tmp_path / "empty"))
    with pytest.raises(KnowledgeError, match="away"):
        load_own(_config(tmp_path / "away"))


def test_a_file_that_is_not_utf8_is_named(folder):
    (folder / "old.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(KnowledgeError, match=r"old\.txt: .*byte 3"):
        load_own(_config(folder))


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", r"line 2: "), ("[1]", r"line 2: list"),
     ('{"title": "t"}', r"line 2: .*'text'"),
     ('{"title": 3, "text": "t"}', r"line 2: 'title'")],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(folder, line, message):
    (folder / "rows.jsonl").write_text('{"title": "t", "text": "u"}\n' + line + "\n")
    with pytest.raises(KnowledgeError, match=message):
        load_own(_config(folder))


def test_equal_document_ids_are_refused(folder):
    (folder / "rows.jsonl").write_text('{"id": "x", "title": "t", "text": "u"}\n' * 2)
    with pytest.raises(KnowledgeError, match="'x'"):
        load_own(_config(folder))


def test_a_question_without_a_usable_answer_is_named(folder, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Who?", "answer": []}\n')
    with pytest.raises(KnowledgeError, match=r"line 1: 'answer'"):
        load_own(_config(folder, questions=path))


def test_triples_become_typed_entities_and_relations(folder, triples_file):
    source = load_own(_config(folder, triples=triples_file))
    relations = {relation.name: relation for relation in source.relations}
    assert relations["born_in"].label == "born in"
    assert (relations["born_in"].subject_kind, relations["born_in"].object_kind) == (
        "person",
        "city",
    )
    assert relations["born_in"].functional
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
    source = load_own(_config(folder, triples=path))
    assert [r.name for r in source.relations] == ["in", "in (land to planet)"]
    assert {r.label for r in source.relations} == {"in"}


def test_every_user_triple_can_be_read_and_found(folder, triples_file, tmp_path):
    profile = Profile(knowledge=_config(folder, triples=triples_file))
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
