import bz2
import gzip
import json
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from espalier.config import KnowledgeConfig, Profile
from espalier.records import KnowledgeError, NullTracker
from espalier.records.knowledge import KnowledgeGraph
from espalier.stages import ingest as stage
from espalier_search.knowledge.user_sources import dump_documents, load_own, sql_documents
from espalier_search.knowledge.wikitext import plain_text

PAGE = (
    "<page><title>{title}</title><ns>{ns}</ns><id>{id}</id>{more}"
    "<revision><id>99{id}</id><contributor><id>7</id></contributor>"
    "<text>{text}</text></revision></page>"
)


def page(number, title, text="It lies in France.", ns=0, more=""):
    return PAGE.format(id=number, title=title, text=text, ns=ns, more=more)


def export(*pages):
    namespace = "http://www.mediawiki.org/xml/export-0.11/"
    return f'<mediawiki xmlns="{namespace}">{"".join(pages)}</mediawiki>'.encode()


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "Where is Lyon?", "answer": "France"}) + "\n")
    return path


def _own(folder, texts, *triples):
    for name, text in texts.items():
        (folder / "texts").mkdir(exist_ok=True)
        (folder / "texts" / name).write_text(text, encoding="utf-8")
    keys = ("subject", "relation", "object")
    rows = [json.dumps(dict(zip(keys, row, strict=True))) for row in triples]
    (folder / "triples.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return load_own(
        KnowledgeConfig(source="folder", path=folder / "texts", triples=folder / "triples.jsonl")
    )


@pytest.mark.parametrize("told_by", ["a.md", "b.md"])
def test_of_documents_with_one_title_the_telling_one_is_used(tmp_path, told_by):
    texts = {"a.md": "# Rome\n\nIt is old.", "b.md": "# Rome\n\nIt is large."}
    texts[told_by] += " It lies on the Tiber in Italy."
    source = _own(tmp_path, texts, ("Rome", "river", "Tiber"), ("Rome", "country", "Italy"))
    [chosen] = source.entity_documents.values()
    document = next(one for one in source.documents if one.document_id == chosen)
    assert "It lies on the Tiber in Italy." in document.lines
    assert any("several documents" in note and "Rome" in note for note in source.notes)


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        ("H\u00e0", "H\u1ea1", True),
        ("M\u00e1", "M\u00e3", True),
        ("H\u00e0", "Ha", False),
        ("S\u00e3o Paulo", "Sao Paulo", False),
        ("H\u00e0", "H\u00c0", False),
        ("H\u00e0", "Ho", False),
    ],
)
def test_names_that_become_one_by_their_accents_are_told(tmp_path, first, second, is_told):
    rows = ((first, "king", "An"), (second, "king", "Binh"))
    source = _own(tmp_path, {"a.md": "# X\n\nText."}, *rows)
    assert any(repr(first) in note and repr(second) in note for note in source.notes) == is_told


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".xml", bytes), (".bz2", bz2.compress), (".gz", gzip.compress)]
)
def test_articles_of_a_dump_become_documents_however_it_is_packed(tmp_path, suffix, pack):
    path = tmp_path / f"dump{suffix}"
    no_articles = (
        page(3, "Talk:Lyon", ns=1),
        page(4, "Lyons", more='<redirect title="Lyon" />'),
        page(5, "Empty", "{{stub}}"),
    )
    turin = page(2, "Turin", "A city.\nIt is old. Very.")
    path.write_bytes(pack(export(page(1, "Lyon"), *no_articles, turin)))
    first, second = dump_documents(path, 0)
    assert (first.document_id, first.title) == ("document:1", "Lyon")
    assert second.lines == ("A city.", "It is old.", "Very.")


def test_a_dump_names_the_links_without_words_in_its_language(tmp_path):
    names = '<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    text = "[[Datei:A.jpg|mini|Ein Bild]]Ulm war alt.[[Kategorie:Ort]][[Image:B.png]]"
    content = export(f"<siteinfo><namespaces>{names}</namespaces></siteinfo>", page(1, "Ulm", text))
    (tmp_path / "dump.xml").write_bytes(content)
    [document] = dump_documents(tmp_path / "dump.xml", 0)
    assert document.lines == ("Ulm war alt.",)


def test_a_type_with_a_colon_is_no_other_entity(tmp_path):
    rows = [
        {"subject": "2", "subject_type": "a:1", "relation": "r", "object": "X"},
        {"subject": "1:2", "subject_type": "a", "relation": "r", "object": "Y"},
    ]
    (tmp_path / "a.md").write_text("Text.")
    (tmp_path / "triples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = load_own(
        KnowledgeConfig(source="folder", path=tmp_path, triples=tmp_path / "triples.jsonl")
    )
    assert len({entity.entity_id for entity in source.entities}) == len(source.entities) == 4


def test_a_dump_is_read_no_further_than_asked(tmp_path):
    path = tmp_path / "dump.xml"
    # what follows is broken: it would be an error if it were read
    path.write_bytes(export(*(page(n, f"Page {n}") for n in range(9000)))[:-500])
    assert len(list(dump_documents(path, 10))) == 10


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Lyon''' is in [[France]].", "Lyon is in France."),
        ("the [[Rhone|river]] and [https://x.org its page]", "the river and its page"),
        ("a{{cite|{{nested|x}}}}b", "a b"),
        ("a<ref name=x>note</ref>b<ref name=x/>c", "a b c"),
        ("{| class=x\n| cell\n|}\nafter", "after"),
        ("[[File:a.jpg|thumb|a [[link]] in it]]after", "after"),
        ("== History ==\nold<br/>new<!-- no -->", "History\nold new"),
        ("=== C = D ===\n= alone\nx", "C = D\n= alone\nx"),
        ("[https://x.org] is old, [https://y.org the other] not [1]", "is old, the other not [1]"),
        ('a<ref name="x/y"/>b<ref>c</ref>d', "a b d"),
        ("a<!-- b <ref> -->c<math>d</math>e", "a c e"),
        ("<ref>a {| b [http://x <!-- c", "a {| b [http://x <!-- c"),
        ("{{convert|10|to|20|km|mi}} {{cvt|10|km2|sqmi}}", "10 to 20 km 10 km2"),
        ("{{convert|5|ft|11|in|m}} {{convert|10|-|20|km|abbr=on}}", "5 ft 11 in 10\u201320 km"),
        (
            "{{convert|\u22123|to|+5|C|F}} {{cvt|1,200.5|sqmi|km2|0}}",
            "\u22123 to +5 C 1,200.5 sqmi",
        ),
        ("{{nowrap|5 km}} {{nowrap|[[Lyon|a city]]}} {{nobr|{{frac|2|1|2}}}}", "5 km a city 2 1/2"),
        ("{{lang|de|Rhein}}, {{lang-fr|Rhin}} {{ill|Otto|de}}", "Rhein, Rhin Otto"),
        ("{{circa|1850}} {{as of|2020}} {{val|1.5|u=km}}", "c. 1850 as of 2020 1.5 km"),
        ("{{US$|5 million}} {{\u00a3|5}} {{abbr|kg|kilogram}}", "US$5 million \u00a35 kg"),
        ("{{val|5.97|e=24|ul=kg}} {{val|p=~|5|u=km|up=s}}", "5.97\u00d710^24 kg ~5 km/s"),
        ("{{val|5|-|6}} 3{{e|8}} m/s 5 km{{sup|2}}", "5\u20136 3\u00d710^8 m/s 5 km^2"),
        ("1914{{ndash}}1918 {{convert|1.5|e6acre|km2}}", "1914\u20131918 1.5\u00d710^6 acre"),
        ("{{langx|de|K\u00f6ln}} {{nowrap|1=5 km}} {{ill|A|de|lt=C}}", "K\u00f6ln 5 km C"),
        ("{{birth date|df=y|1850|3|4}} {{start date|2010}}", "1850-03-04 2010"),
        ("{{ship|HMS|Hood}} {{USS|Enterprise}} {{flag|France}}", "HMS Hood USS Enterprise France"),
        ("{{GBP|5}} {{US$|5|million}} {{chem|H|2|O}}", "\u00a35 US$5 million H2O"),
        ("{{birth date|x}} {{val}} {{frac|3}}", "x 1/3"),
        ("{{infobox|a=b}} {{cite web|title=x}} {{convert}} {{nowrap}}", ""),
    ],
)
def test_wikitext_is_read_without_its_markup(wikitext, text):
    read = plain_text(wikitext)
    assert " ".join(read.split()) == " ".join(text.split())


@given(st.text(alphabet="[]{}|<>/='ab:\n! -refFile", max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_wikitext_is_read_without_an_error(wikitext):
    assert isinstance(plain_text(wikitext), str)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("dump.xml", export(page(1, "Lyon"))[:-20], "MediaWiki"),
        ("dump.xml", b"not xml", "MediaWiki"),
        ("dump.bz2", b"not packed", r"dump\.bz2"),
        ("dump.zip", b"", r"\.xml"),
        ("away.xml", None, r"away\.xml"),
        ("dump.xml", export(page(1, "Lyon", "")), "no article"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, questions, name, content, complaint):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    config = KnowledgeConfig(source="dump", path=tmp_path / name, questions=questions)
    with pytest.raises(KnowledgeError, match=complaint):
        load_own(config)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table page (id integer, title text, body text)")
        connection.execute("create table fact (s text, r text, o text, born integer)")
        for number in range(60):
            name, land = f"Town{number:02d}", f"Land{number % 12:02d}"
            body = f"{name} is a town. It lies in {land}."
            connection.execute("insert into page values (?, ?, ?)", (number, name, body))
            connection.execute("insert into fact values (?, 'country', ?, 1)", (name, land))
    connection.close()
    return f"sqlite:///{path}"


DOCUMENTS = "select id, title, body as text from page order by id"
TRIPLES = (
    "select s as subject, r as relation, o as object, 'town' as subject_type, "
    "'land' as object_type from fact order by s"
)


def sql(database, **fields):
    fields = {"documents_query": DOCUMENTS, "triples_query": TRIPLES} | fields
    return KnowledgeConfig(source="sql", database=database, **fields)


def test_a_database_is_ingested_like_a_folder(database, tmp_path):
    source = load_own(sql(database))
    assert source.documents[3].lines == ("Town03 is a town.", "It lies in Land03.")
    assert source.triples[3] == ("town:town03", "country", "land:land03")
    profile = Profile(knowledge=sql(database))
    stage.run(profile, {}, tmp_path / "knowledge", NullTracker())
    graph = KnowledgeGraph.load(tmp_path / "knowledge")
    assert set(graph.relations) == {"country"}
    assert len(graph.entities) == 72


def test_text_that_a_database_keeps_as_bytes_is_text(tmp_path):
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table page (id integer, title text, body blob)")
        connection.execute(
            "insert into page values (1, 'Ada', ?)", ("Ada n\u00e9e Byron.".encode(),)
        )
        connection.execute("insert into page values (2, 'Kurt', ?)", (b"\xff\xfe",))
    connection.close()
    query = "select id, title, body as text from page where id = {}"
    (document,) = sql_documents(f"sqlite:///{path}", query.format(1), None)
    assert document.lines == ("Ada n\u00e9e Byron.",)
    with pytest.raises(KnowledgeError, match="row 1, text: bytes"):
        sql_documents(f"sqlite:///{path}", query.format(2), None)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"documents_query": "select title from nowhere"}, "nowhere"),
        ({"documents_query": "select id from page"}, "'text'"),
        ({"documents_query": "select title, '' as text from page"}, "documents_query|empty"),
        ({"triples_query": TRIPLES.replace("order", "where 0 order")}, "no row"),
        ({"database": "sqlite:////nowhere/at/all.db"}, "open"),
        ({"database": "nonsense"}, "opened"),
    ],
)
def test_an_unreadable_database_is_refused_with_its_reason(database, fields, complaint):
    fields = {"database": database} | fields
    with pytest.raises(KnowledgeError, match=complaint):
        load_own(sql(**fields))


def test_a_password_comes_from_a_file_and_is_not_told(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("hunter2hunter\n")
    config = sql("sqlite://user@host/none.db", database_password_file=secret)
    with pytest.raises(KnowledgeError) as caught:
        load_own(config)
    assert "hunter2" not in f"{caught.value!s} {caught.value!r} {config!r}"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"source": "dump"}, r"knowledge\.path"),
        ({"source": "sql", "triples_query": "q"}, r"knowledge\.database"),
        ({"database": "sqlite://"}, "sql"),
        ({"source": "sql", "database": "postgresql://u:pw@h/d", "documents_query": "q",
          "triples_query": "q"}, "password"),
        ({"source": "sql", "database": "sqlite://", "documents_query": "q", "triples": "t.jsonl",
          "triples_query": "q"}, "triples_query"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(fields, complaint):
    with pytest.raises(ValidationError, match=complaint):
        KnowledgeConfig.model_validate(fields)
