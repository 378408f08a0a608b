import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import FinalAnswer, KnowledgeError
from espalier.records.knowledge import Document
from espalier_search.search_qa.invented_names import InventedNames
from espalier_search.search_qa.reading_logs import BrowsingWriter, ClozeWriter

DOCUMENTS = [
    Document("city:1", "Lyon", ("country: France", "time zone: Europe/Paris"), "train"),
    Document("city:2", "Turin", ("country: Italy", "time zone: Europe/Rome"), "train"),
    Document("country:1", "France", ("capital: Paris", "neighbours: Spain; Italy"), "train"),
    Document("country:2", "Italy", ("capital: Rome", "neighbours: France; Austria"), "train"),
]
OBJECT_KINDS = {
    "country": "country",
    "time zone": "time zone",
    "capital": "city",
    "neighbours": "country",
}
KNOWN = {d.title for d in DOCUMENTS} | {
    value for d in DOCUMENTS for line in d.lines for value in line.partition(": ")[2].split("; ")
}


def show_all(document, query):
    """Show every line, so that a test can check what an answer was read from."""
    del query
    return " | ".join((document.title, *document.lines))


def _log(seed, substitution_share=0.6, join_share=0.0):
    kinds = {document.document_id: document.document_id.split(":")[0] for document in DOCUMENTS}
    writer = BrowsingWriter(
        DOCUMENTS,
        kinds,
        OBJECT_KINDS,
        show_all,
        substitution_share=substitution_share,
        join_share=join_share,
    )
    return writer.write(random.Random(seed))


def _query(action):
    [call] = action.calls
    assert call.name == "search"
    return call.arguments["query"]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_log_searches_read_names_and_answers_from_the_last(seed):
    log = _log(seed)
    assert log == _log(seed)
    *pieces, last = log.pieces
    assert [isinstance(piece, str) for piece in pieces] == [False, True] * (len(pieces) // 2)
    assert pieces
    read = log.prompt
    for piece in pieces:
        if isinstance(piece, str):
            read = piece
        else:
            query = _query(piece)
            label = next(label for label in OBJECT_KINDS if query.endswith(f" {label}"))
            assert query.removesuffix(f" {label}") in read
    assert isinstance(last, FinalAnswer)
    lines = pieces[-1].split(" | ")[1:]
    assert last.text in [value for line in lines for value in line.split(": ")[1].split("; ")]


@pytest.mark.parametrize(("share", "invented"), [(0.0, False), (1.0, True)])
def test_names_are_invented_as_often_as_asked(share, invented):
    answers = {_log(seed, substitution_share=share).pieces[-1].text for seed in range(200)}
    assert (answers <= KNOWN) is not invented
    if invented:
        assert len(answers - KNOWN) > len(answers & KNOWN)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Jutrar Works", r"[A-Z][a-z]+ Works"),
        ("the Bumral Museum", r"the [A-Z][a-z]+ Museum"),
        ("Zordin Polpren", r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("piano", r"[a-z]+"),
        ("Route 66", r"[A-Z][a-z]+ [1-9]{2}"),
        ("the Museum", r"[a-z]+ [A-Z][a-z]+"),
        ("Lamvil - Works", r"[A-Z][a-z]+ - Works"),
    ],
)
def test_of_few_names_an_invented_one_is_of_its_kind(name, shape):
    towns = ("Bumral", "Trangron", "Kesdor", "Lamvil")
    known = [f"the {town} Museum" for town in towns] + [f"{town}son Works" for town in towns]
    names = InventedNames([*known, "Zordin Polpren"])
    made = {names.in_place_of(name, random.Random(seed)) for seed in range(200)}
    assert all(re.fullmatch(shape, one) for one in made)
    assert len(made) > 40
    assert name not in made


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8), st.text(max_size=20))
def test_odd_names_are_invented_without_a_fault(known, name):
    made = InventedNames(known).in_place_of(name, random.Random(0))
    assert len(made.split()) <= max(1, len(name.split()))


def _joint_searches(log):
    """Each joint search of a log: its query, what it showed, and what was read before."""
    read = log.prompt
    for action, observation in zip(log.pieces[:-1:2], log.pieces[1::2], strict=True):
        if action.thought.startswith("both"):
            yield _query(action).removesuffix(" neighbours"), observation, read
        read += f" {observation}"


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_joint_search_names_two_and_finds_both(seed):
    log = _log(seed, join_share=1.0)
    searches = list(_joint_searches(log))
    assert 1 <= len(searches) <= 2
    for names, _, read in searches:
        splits = (names[:at] for at, letter in enumerate(names) if letter == " ")
        assert any(first in read and names.removeprefix(first).strip() in read for first in splits)
    names, found, _ = searches[-1]
    listed = next(x for x in found.split(" | ") if x.startswith("neighbours")).split(": ")[1]
    values = listed.split("; ")
    assert any(names == f"{first} {second}" for first in values for second in values)


def test_join_share_is_the_share_of_joint_logs():
    logs = [_log(seed, join_share=0.3) for seed in range(400)]
    assert sum(any(_joint_searches(log)) for log in logs) == pytest.approx(120, abs=30)


# ---------------------------------------------------------------------- cloze


CLOZE = [Document("d", "Velo", ("Its oldest trade is that of the weaver.",), "train")]


def test_a_cloze_log_answers_what_its_search_shows():
    writer = ClozeWriter(CLOZE, show_all, substitution_share=1.0)
    for seed in range(50):
        log = writer.write(random.Random(seed))
        _, shown, last = log.pieces
        assert last.text in shown
        assert log == writer.write(random.Random(seed))
    with pytest.raises(KnowledgeError, match="nothing"):
        ClozeWriter([Document("d", "T", ("a b",), "train")], show_all, substitution_share=0.5)
