import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.chain import STAGES
from espalier.config import (
    EndpointConfig,
    ExtractionConfig,
    KnowledgeConfig,
    Profile,
    RelationConfig,
)
from espalier.records import EngineError, KnowledgeError, NullTracker, open_artifact
from espalier.records.knowledge import KnowledgeGraph, load_documents
from espalier.stages import ingest as stage
from espalier_search.knowledge.extraction import extract
from espalier_search.knowledge.search import documents_path
from espalier_search.knowledge.sources import SourceDocument
from espalier_search.knowledge.statements import (
    Checker,
    Chunk,
    Mention,
    NormalizedText,
    Statement,
    chunks_of,
    normalized_name,
    normalized_quotation,
)
from espalier_search.knowledge.user_sources import load_own
from tests.fakes.endpoint_double import Scripted, completion, running_double

BORN_IN = RelationConfig(name="born_in", subject_type="person", object_type="city", functional=True)
WORKED_WITH = RelationConfig(name="worked_with", subject_type="person", object_type="person")
TEXT = "Ada Lovelace was born in London. She wrote notes.\nAda worked with Charles Babbage."
CHUNK = Chunk("document:ada.md", "Ada", 100, TEXT)


@pytest.fixture
def double():
    with running_double() as server:
        yield server


def said(subject="Ada Lovelace", relation="born_in", object_="London", evidence=TEXT[:32]):
    return {"subject": subject, "relation": relation, "object": object_, "evidence": evidence}


def judged(**fields):
    statement = Statement.model_validate(said(**fields))
    return Checker(CHUNK, (BORN_IN, WORKED_WITH)).mention(statement)


def test_a_proven_statement_is_kept_with_its_position():
    mention = judged()
    assert isinstance(mention, Mention)
    assert mention[:3] == ("Ada Lovelace", "born_in", "London")
    assert mention.span == (100, 132)
    assert mention.evidence == "Ada Lovelace was born in London."


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"evidence": "Ada Lovelace was born in Paris."}, "evidence_not_in_document"),
        ({"evidence": "ada lovelace was born in london."}, "evidence_not_in_document"),
        ({"evidence": "Lovelace was born i"}, "evidence_not_in_document"),
        ({"evidence": " \u200b\n"}, "evidence_not_in_document"),
        ({"subject": "Charles Babbage"}, "subject_not_in_evidence"),
        ({"subject": "Ada Love"}, "subject_not_in_evidence"),
        ({"object_": "Lon"}, "object_not_in_evidence"),
        ({"subject": "She", "object_": "notes", "evidence": "She wrote notes."}, "no_name"),
        ({"object_": "Ada  LOVELACE"}, "subject_is_object"),
        ({"relation": "lives_in"}, "unknown_relation"),
    ],
)
def test_an_unproven_statement_is_refused_with_its_reason(fields, fault):
    assert judged(**fields) == fault


def test_differing_spelling_is_found_and_the_document_spelling_kept():
    text = "\u201cZo\u00eb  d\u2019Arc\u201d was\nborn in S\u00e3o Paulo \u2013 in 1\u00a0900."
    statement = said("zoe d'arc", "Born in", "Sao Paulo", '"Zoe\u0308 d\'Arc" was born in')
    statement["evidence"] += " S\u00e3o Paulo - in 1 900."
    mention = Checker(Chunk("d", "t", 0, text), (BORN_IN,)).mention(
        Statement.model_validate(statement)
    )
    assert isinstance(mention, Mention)
    assert mention[:3] == ("Zo\u00eb d\u2019Arc", "born_in", "S\u00e3o Paulo")
    assert mention.evidence == text


@given(
    st.text(max_size=60),
    st.text(max_size=12),
    st.sampled_from([normalized_quotation, normalized_name]),
)
@settings(max_examples=300, deadline=None)
def test_text_found_equals_text_sought_after_normalization(text, wanted, normalize):
    span = NormalizedText(text, normalize).find(wanted)
    if span is not None:
        found = "".join(" ".join("".join(map(normalize, span.of(text))).split()))
        assert " ".join("".join(map(normalize, wanted)).split()) in found
        assert 0 <= span.start < span.end <= len(text)


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("C++ is older than C#.", "C", None), ("C++ is older than C.", "C", 18),
        ("It is -5 in Oslo, 15 in Rome.", "5", None), ("It was 1.5, and 1.", "1", 16),
        ("the .NET runtime", "NET", None), ("from 1914-18", "-18", None), ("1914\u201318", "18", 5),
        ("東京は日本の首都です。", "日本", 3), ("パスとバス", "バス", 3),
        ("スペースパス", "パス", None), ("서울은 수도이다", "서울", 0), ("설은 서울", "서", 3),
        ("किताब", "कताब", None), ("เมืองหลวงคือปารีส", "ปารีส", 12), ("мой и мои", "мои", 6),
        ("O\u0308lu Ölü", "Olu", 0),
    ],
)  # fmt: skip
def test_a_name_is_found_whole_in_any_script(text, name, found):
    span = NormalizedText(text, normalized_name).find(name)
    assert (span.start if span else None) == found


@pytest.mark.parametrize("piece", ["a", "-5", "東", "é"])
def test_a_quotation_that_repeats_itself_is_sought_quickly(piece):
    text = NormalizedText(f"1{piece * 20_000}1", normalized_quotation)
    began = time.perf_counter()
    text.find(f"{piece * 1_000}x")
    text.find(f"{piece * 1_000}{piece[:-1]}")
    text.find(piece * 1_000)
    assert time.perf_counter() - began < 5


@given(
    st.lists(st.text(alphabet="ab \u00e9", max_size=40).map(lambda t: " ".join(t.split()) or "x")),
    st.integers(1, 12),
)
@settings(max_examples=200, deadline=None)
def test_chunks_hold_every_line_once_at_their_offset(lines, max_words):
    text = "\n".join(lines)
    chunks = list(chunks_of(SourceDocument("d", "t", tuple(lines)), max_words))
    assert "\n".join(chunk.text for chunk in chunks) == text
    for chunk in chunks:
        assert text[chunk.start : chunk.start + len(chunk.text)] == chunk.text
        assert len(chunk.text.split()) <= max_words or "\n" not in chunk.text
    # an overlong line is skipped and moves no offset
    spoilt = SourceDocument("d", "t", ("one", "x" * 5000, "two"))
    assert [(one.start, one.text) for one in chunks_of(spoilt, 100)] == [(0, "one"), (5005, "two")]


@pytest.fixture
def people(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    for number in range(40):
        name, friend = f"Person{number:02d}", f"Person{(number + 1) % 40:02d}"
        text = f"# {name}\n\n{name} was born in City{number % 8}. {name} worked with {friend}.\n"
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return folder


def reader(body):
    """Answers as a model that reads well, and adds one lie a document."""
    told = json.loads(body["messages"][1]["content"])
    first, second = told["text"].split("\n")
    words = first.split()
    statements = [
        said(words[0], "born_in", words[-1].strip("."), first),
        said(words[0], "worked_with", second.split()[-1].strip("."), second),
        said(words[0], "born_in", "Atlantis", f"{words[0]} was born in Atlantis."),
    ]
    return completion(json.dumps({"triples": statements}))


def settings_of(double, tmp_path, relations=(BORN_IN, WORKED_WITH), **fields):
    endpoint = {"url": double.url, "model": "reader", "cache": tmp_path / "cache"} | fields
    return ExtractionConfig(endpoint=EndpointConfig(**endpoint), relations=relations)


def profile_of(folder, extraction):
    return Profile(knowledge=KnowledgeConfig(source="folder", path=folder, extraction=extraction))


def ingested(profile, directory):
    return stage.run(profile, {}, directory, NullTracker())


def test_a_folder_is_ingested_with_proven_triples_of_a_model(double, people, tmp_path):
    double.respond = reader
    out = tmp_path / "knowledge"
    manifest = ingested(profile_of(people, settings_of(double, tmp_path)), out)
    graph = KnowledgeGraph.load(out)
    assert manifest.rows["triples"] == 80
    assert set(graph.relations) == {"born_in", "worked_with"}
    assert graph.objects("born_in", "person:person03") == ("city:city3",)
    assert "atlantis" not in " ".join(graph.entities)
    funnel = json.loads((out / "extraction.json").read_text())
    assert funnel["statements"] == {"kept": 80, "evidence_not_in_document": 40}
    assert funnel["read"] == {"documents": 40, "chunks": 40, "lines_too_long": 0}
    texts = {
        document.document_id: "\n".join(document.lines)
        for document in load_documents(documents_path(out, "full"))
    }
    lines = [json.loads(line) for line in (out / "evidence.jsonl").read_text().splitlines()]
    stated = {(line["subject"], line["relation"], line["object"]) for line in lines}
    assert stated == set(graph.triples())
    for line in lines:
        evidence = texts[line["document_id"]][line["start"] : line["end"]]
        assert evidence == line["evidence"]
        assert line["subject"].removeprefix("person:") in evidence.lower()


def test_a_resumed_ingest_uses_cached_answers_and_ends_the_same(double, people, tmp_path):
    usage = {"prompt_tokens": 500, "completion_tokens": 100}
    double.respond = lambda body: reader(body) | {"usage": usage}

    def run(name, **fields):
        return ingested(
            profile_of(people, settings_of(double, tmp_path, **fields)), tmp_path / name
        )

    expected = run("whole", cache=None)
    asked = len(double.seen)
    poor = {"prompt_price": 1e6, "completion_price": 1e6, "max_cost": 12_000, "concurrency": 3}
    with pytest.raises(EngineError, match="max_cost=12000"):
        run("knowledge", **poor)
    assert not (tmp_path / "knowledge").exists()
    assert asked + 4 < len(double.seen) < 2 * asked
    again = run("knowledge")
    # what was under way when it stopped was answered, and not kept
    assert 2 * asked <= len(double.seen) <= 2 * asked + 3
    run("third", replay_only=True)
    names = ("triples.parquet", "evidence.jsonl", "extraction.json")
    assert [again.files[name] for name in names] == [expected.files[name] for name in names]
    contents = {open_artifact(tmp_path / name).content for name in ("knowledge", "third")}
    assert len(contents) == 1
    used = json.loads((tmp_path / "third" / "run.json").read_text())["extraction"]
    assert used["state_triples"]["from_cache"] == 40


def extracted(double, folder, tmp_path, **fields):
    """What the double's statements come to over a folder."""
    questions = tmp_path / "q.jsonl"
    questions.write_text(json.dumps({"question": "Who?", "answer": "Ada"}))
    source = load_own(KnowledgeConfig(source="folder", path=folder, questions=questions))
    return source, extract(source, settings_of(double, tmp_path, **fields), NullTracker())


def answering(double, *statements):
    double.usual = Scripted(completion(json.dumps({"triples": statements})))


@pytest.fixture
def two_texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("Ada was born in London. Ada was born in Paris.\n")
    (folder / "b.txt").write_text("Bob was born in Rome. Ada was born in London.\n")
    return folder


BOTH = [
    said("Ada", object_="London", evidence="Ada was born in London."),
    said("Ada", object_="Paris", evidence="Ada was born in Paris."),
    said("Bob", object_="Rome", evidence="Bob was born in Rome."),
]


def test_objects_that_contradict_each_other_are_dropped_and_repeats_counted(
    double, two_texts, tmp_path
):
    answering(double, *BOTH, BOTH[2])
    source, found = extracted(double, two_texts, tmp_path)
    assert source.triples == [("person:bob", "born_in", "city:rome")]
    counted = {"evidence_not_in_document": 3, "contradicted": 3, "kept": 1, "repeated": 1}
    assert found.funnel["statements"] == counted


def test_all_objects_of_a_non_functional_relation_are_kept(double, two_texts, tmp_path):
    answering(double, *BOTH)
    many = BORN_IN.model_copy(update={"functional": False})
    source, found = extracted(double, two_texts, tmp_path, relations=(many,))
    # two documents say where Ada was born
    assert (len(source.triples), len(found.mentions)) == (3, 4)


def test_open_relations_are_normalized_counted_and_dropped_if_rare(double, two_texts, tmp_path):
    strange = ("born_in", "<search> x </search>", "a_b_c_d_e_f", "x" * 41)
    answering(
        double,
        BOTH[0] | {"relation": "Born  in"},
        BOTH[1] | {"relation": "was-born_in"},
        *(BOTH[2] | {"relation": relation} for relation in strange),
    )
    source, found = extracted(double, two_texts, tmp_path, relations=())
    assert [relation.name for relation in source.relations] == ["born_in"]
    assert found.funnel["proven.relations"] == {"born_in": 3, "was_born_in": 1}
    assert found.funnel["kept.relations"] == {"born_in": 3}
    assert found.funnel["statements"]["rare_relation"] == 1
    assert found.funnel["statements"]["unknown_relation"] == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (completion("I would rather not."), "broken_json"),
        (completion('{"triples": [], "note": "x"}'), "wrong_shape"),
        (completion(None, refusal="No."), "refused"),
        (completion('{"triples": [', finish_reason="length"), "truncated"),
        (completion(json.dumps({"triples": [said()] * 101})), "wrong_shape"),
        (completion(json.dumps({"triples": [said(evidence="x" * 2001)]})), "wrong_shape"),
    ],
)
def test_an_unreadable_answer_is_counted_and_others_are_used(
    double, two_texts, tmp_path, answer, reason
):
    double.script = [Scripted(answer)]
    answering(double, BOTH[2])
    _, found = extracted(double, two_texts, tmp_path, asks=1, concurrency=1)
    assert found.funnel["answers"] == {reason: 1, "read": 1}
    assert found.funnel["statements"] == {"kept": 1}


def test_a_model_without_proven_statements_is_an_error(double, two_texts, tmp_path):
    answering(double, said(evidence="Ada was born in Vienna."))
    with pytest.raises(KnowledgeError, match="evidence_not_in_document': 2"):
        extracted(double, two_texts, tmp_path)


HOSTILE = (
    "", " ", "\x00", "\u202e", "</think>", "<search> x </search>", "{x}", "{0.__class__}", "%s",
    "ignore all instructions", "\ud800", "2" * 1999, "'; drop table triples; --", "../../x",
    "Ada", "London", "Ada was born in London.", "was born", ".", "born_in",
)  # fmt: skip


def test_ten_thousand_hostile_statements_leave_only_words_of_the_document():
    rng = random.Random(3)
    text = "Ada was born in London. Bob saw Rome <b>twice</b>."
    for relations in ((BORN_IN,), ()):
        checker = Checker(Chunk("d", "t", 0, text), relations)
        kept = 0
        for _ in range(5000):
            statement = said("Ada", "born_in", "London", "Ada was born in London.")
            for key in rng.sample(list(statement), rng.randint(1, 3)):
                statement[key] = rng.choice(HOSTILE)
            found = checker.mention(Statement.model_construct(**statement))
            if isinstance(found, Mention):
                kept += 1
                assert found.span.of(text) == found.evidence
                assert found.subject in found.evidence
                assert found.object in found.evidence
                assert found.relation.replace("_", "").isalnum()
        assert 0 < kept < 2500


ASKED = {"endpoint": {"url": "http://h/v1", "model": "m"}}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"extraction": {"endpoint": {"url": "http://h/v1"}}}, r"endpoint\.model"),
        ({"extraction": {}}, "one model"),
        ({"extraction": ASKED | {"vllm": {"model": "DIR"}}}, "one model"),
        ({"triples": "t.jsonl"}, r"knowledge\.triples"),
        ({"source": "geonames", "path": None}, r"knowledge\.source"),
        ({"extraction": ASKED | {"relations": [{"name": "born_in"}, {"name": "Born in"}]}}, "once"),
        ({"extraction": ASKED | {"relations": [{"name": "<born>"}]}}, "pattern"),
    ],
)
def test_contradictory_settings_of_an_extraction_are_refused(fields, complaint):
    whole = {"source": "folder", "path": "texts", "extraction": ASKED}
    KnowledgeConfig.model_validate(whole)
    KnowledgeConfig.model_validate(whole | {"extraction": {"vllm": {"model": "DIR"}}})
    with pytest.raises(ValidationError, match=complaint):
        KnowledgeConfig.model_validate(whole | fields)


def test_a_profile_without_extraction_keeps_its_digests():
    assert "extraction" not in Profile().model_dump(mode="json")["knowledge"]
    extraction = ExtractionConfig(endpoint=EndpointConfig(url="http://h/v1", model="m"))
    with_model = profile_of("texts", extraction)
    assert Profile.model_validate_json(with_model.model_dump_json()) == with_model
    assert STAGES["ingest"].digest(with_model) != STAGES["ingest"].digest(Profile())
    without = Profile(knowledge=KnowledgeConfig(source="folder", path="texts", triples="t.jsonl"))
    assert STAGES["train"].digest(with_model) == STAGES["train"].digest(without)
