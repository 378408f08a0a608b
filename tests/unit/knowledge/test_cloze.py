"""Questions made from the sentences of documents alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.config import KnowledgeConfig, Profile
from espalier.records import NullTracker, read_tasks
from espalier.stages import ingest, synthesize
from espalier_search.knowledge.cloze import cloze_questions
from espalier_search.knowledge.sources import SourceDocument, lines_of
from tests.factories.prose_folder import ProseFolder, write
from tests.factories.tracking import Notes


def _made(*texts):
    documents = [
        SourceDocument(f"document:{title}", title, tuple(lines_of(text))) for title, text in texts
    ]
    return cloze_questions(documents)


def _pairs(*texts):
    return [(one.question, *one.answers) for one in _made(*texts).questions]


def test_names_years_and_numbers_are_asked_for_as_such():
    assert _pairs(("Ada", "Ada was born in London in 1815. It has 1,250 rooms.")) == [
        ("Ada was born in London in which year?", "1815"),
        ("Ada was born in what in 1815?", "London"),
        ("Ada has how many rooms?", "1,250"),
    ]


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        ("Ada saw 1 234 567 people.", ["1 234 567"]),
        ("Ada saw 1\u202f234\u202f567 people.", ["1 234 567"]),
        ("Ada saw 1'234'567 people.", ["1'234'567"]),
        ("Ada weighs 3.5 tons.", ["3.5"]),
        ("Ada weighs 3,5 tons.", ["3,5"]),
        ("Ada saw 30 of them.", ["30"]),
        ("In 1990 100 people saw Ada there.", ["1990", "100"]),
        ("Ada fell ill with COVID-19 then.", ["COVID-19"]),
        ("Ada flew a B-52 home.", ["B-52"]),
        ("Ada met Conan O\u2019Brien there.", ["Conan O\u2019Brien"]),
        ("Ada met Conan O'Brien there.", ["Conan O'Brien"]),
        ("Ada met Jean-Luc Picard there.", ["Jean-Luc Picard"]),
        ("Ada worked for AT&T then.", ["AT&T"]),
        ("Ada wrote it in C++ then.", ["C++"]),
        ("Ada saw London's towers then.", ["London"]),
        ("Ada saw London\u2019s towers then.", ["London"]),
        ("Ada saw (London) then.", ["London"]),
        ("Ada left Paris, then came back.", ["Paris"]),
        ("Ada was made a Sir by X.", ["Sir"]),
        # a part of these is not asked for
        ("Ada came at 12:30 sharp.", []),
        ("Ada lived there in 1990/91 only.", []),
        ("Ada ruled from 1914\u20131918 only.", []),
        ("Ada counted 10^22 of them.", []),
        ("Ada paid $5 for it.", []),
        ("Ada grew by 5% then.", []),
        ("Ada used version 1.2.3 of it.", []),
        ("Ada came on 12.5.1990 at last.", []),
        ("Ada wrote to a@B.org then.", []),
        ("Ada read McDonald\u2013Smith then.", []),
        ("Ada ran for 5 1/2 hours then.", []),
        ("Ada moved in the 1990s to St. Louis.", []),
        ("Ada met Charles de Gaulle there.", []),
        ("Ada met Ludwig van der Rohe there.", []),
        ("Ada saw the University of Oxford then.", []),
        ("Ada saw the Bank of the West then.", []),
        ("Ada was No. 5 in there.", []),
        ("Ada came on 27 November at last.", ["November"]),
        ("Ada won the 1990 cup there.", ["1990"]),
        ("Ada saw the city of Bonn then.", ["Bonn"]),
    ],
)
def test_a_name_or_number_is_asked_for_whole(said, answers):
    assert [answer for _, answer in _pairs(("Ada", said))] == answers


@pytest.mark.parametrize(
    ("said", "asked_as"),
    [
        ("Ada has 1500 employees there.", "how many"),
        ("Ada costs 2000 dollars a year.", "how many"),
        ("Ada climbed 2350 m high hills.", "how many"),
        ("Ada was there in 1815 by then.", "which year"),
        ("Ada was there, built 1815.", "which year"),
        ("Ada starb in Rom im Jahr 1815.", "which year"),
    ],
)
def test_an_amount_is_no_year(said, asked_as):
    (question,) = [question for question, answer in _pairs(("Ada", said)) if answer.isdigit()]
    assert asked_as in question


def test_the_1990_world_cup_is_asked_for_by_no_number():
    assert not [a for _, a in _pairs(("Ada", "Ada won the 1990 World Cup.")) if a.isdigit()]


def test_a_sentence_that_names_no_subject_is_counted():
    made = _made(("Ada", "London was large in 1815. Few letters of Ada survive."))
    assert not made.questions
    assert made.unused_sentences == 2


def test_what_is_said_in_two_documents_or_twice_asks_nothing():
    assert not _pairs(("Ada", "Ada was born in Rome."), ("Ada", "Ada was born in Bonn."))
    assert not _pairs(("Ada", "Ada was born in London. London pleased her."))


@given(st.text(max_size=200), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_without_an_error(text, title):
    for question, answer in _pairs((title, text)):
        assert answer
        assert question.endswith("?")


def test_documents_alone_give_questions_to_every_split(tmp_path):
    write(ProseFolder(3), tmp_path)
    knowledge = KnowledgeConfig(source="folder", path=tmp_path / "texts")
    profile = Profile(knowledge=knowledge)
    ingest.run(profile, {}, tmp_path / "knowledge", NullTracker())
    inputs = {"knowledge": tmp_path / "knowledge"}
    synthesize.run(profile, inputs, tmp_path / "synthetic", NullTracker())
    for split, least in (("train", 200), ("dev", 25), ("heldout", 80)):
        assert len(read_tasks(tmp_path / "synthetic" / "tasks" / f"{split}.jsonl")) >= least


def test_what_is_made_and_not_asked_is_told_as_such(tmp_path):
    (tmp_path / "texts").mkdir()
    texts = {"a": "# Ada\n\nAda was born in London. Ada wrote a book in 1843."}
    # what a search for the first question finds instead
    texts |= {f"b{n}": f"# Zed {n}\n\n" + "Was Ada born in what?\n" * 9 for n in range(8)}
    for name, text in texts.items():
        (tmp_path / "texts" / f"{name}.md").write_text(text)
    notes = Notes()
    config = KnowledgeConfig(source="folder", path=tmp_path / "texts")
    ingest.run(Profile(knowledge=config), {}, tmp_path / "knowledge", notes)
    told = [line for line in notes.lines if "questions_dropped.json" in line]
    assert told
    assert all("made of the documents" in line and "pairs" not in line for line in told)
