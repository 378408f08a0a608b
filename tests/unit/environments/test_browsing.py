import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.records import FinalAnswer, ToolCalls
from espalier.records.knowledge import Document
from espalier_search.search_qa.invented_names import InventedNames
from espalier_search.search_qa.reading_logs import BrowsingWriter

DOCUMENTS = [
    Document("city:1", "Lyon", ("country: France", "time zone: Europe/Paris"), "train"),
    Document("city:2", "Turin", ("country: Italy", "time zone: Europe/Rome"), "train"),
    Document("country:1", "France", ("capital: Paris", "neighbours: Spain; Italy"), "train"),
    Document("country:2", "Italy", ("capital: Rome", "neighbours: France; Austria"), "train"),
]
KINDS = {document.document_id: document.document_id.split(":")[0] for document in DOCUMENTS}
OBJECT_KINDS = {
    "country": "country",
    "time zone": "time zone",
    "capital": "city",
    "neighbours": "country",
}
KNOWN = {d.title for d in DOCUMENTS} | {
    value for d in DOCUMENTS for line in d.lines for value in line.partition(": ")[2].split("; ")
}


def show_whole_document(document, query):
    """Show every line, so that a test can check what an answer was read from."""
    del query
    return " | ".join((document.title, *document.lines))


def _writer(substitution_share=0.6, join_share=0.0):
    return BrowsingWriter(
        DOCUMENTS,
        KINDS,
        OBJECT_KINDS,
        show_whole_document,
        substitution_share=substitution_share,
        join_share=join_share,
    )


def _logs(count=200, **settings_):
    writer = _writer(**settings_)
    return [writer.write(random.Random(seed)) for seed in range(count)]


def _written(log):
    return [piece for piece in log.pieces if not isinstance(piece, str)]


def _query(action):
    [call] = action.calls
    assert call.name == "search"
    return call.arguments["query"]


def test_the_same_generator_state_writes_the_same_log():
    assert _logs(50) == _logs(50)
    assert len({repr(log.pieces) for log in _logs(50)}) > 40


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_log_is_searches_with_results_and_an_answer(seed):
    log = _writer().write(random.Random(seed))
    reads = [isinstance(piece, str) for piece in log.pieces]
    assert reads == [False, True] * (len(log.pieces) // 2) + [False]
    *searches, last = _written(log)
    assert searches
    assert all(isinstance(action, ToolCalls) for action in searches)
    assert isinstance(last, FinalAnswer)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_the_answer_stands_in_the_last_observation(seed):
    log = _writer().write(random.Random(seed))
    last_observation = log.pieces[-2]
    label = _query(log.pieces[-3])
    values = [
        v for line in last_observation.split(" | ")[1:] for v in line.split(": ")[1].split("; ")
    ]
    assert _written(log)[-1].text in values, (label, last_observation)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_every_search_starts_from_a_name_that_was_read_before(seed):
    log = _writer().write(random.Random(seed))
    read = log.prompt
    for piece in log.pieces[:-1]:
        if isinstance(piece, str):
            read = piece
        else:
            query = _query(piece)
            label = next(label for label in OBJECT_KINDS if query.endswith(f" {label}"))
            assert query.removesuffix(f" {label}") in read


def test_a_plan_names_the_lines_that_are_left_to_read():
    log = next(log for log in _logs() if len(log.pieces) == 7)
    plans = [action.thought for action in _written(log)]
    first = plans[0].split(" , ")
    assert len(first) == 3
    assert [plan.split(" , ") for plan in plans[:3]] == [first, first[1:], first[2:]]


@pytest.mark.parametrize(("share", "invented"), [(0.0, False), (1.0, True)])
def test_names_are_invented_as_often_as_asked(share, invented):
    answers = {_written(log)[-1].text for log in _logs(substitution_share=share)}
    assert (answers <= KNOWN) is not invented
    if invented:
        assert len(answers - KNOWN) > len(answers & KNOWN)


def test_an_invented_name_joins_a_head_and_a_tail():
    names = InventedNames(["Abcdef", "Uvwxyz"] * 500)
    made = {names.in_place_of("Ghi", random.Random(seed)) for seed in range(50)}
    assert made == {"Abcdef", "Abcxyz", "Uvwdef", "Uvwxyz"}


def test_an_invented_name_has_single_blanks():
    names = InventedNames(["San Jose", "Abc def"] * 500)
    made = {names.in_place_of("Ghi", random.Random(seed)) for seed in range(50)}
    assert made == {"San Jose", "San def", "Abc Jose", "Abc def"}


def test_of_few_names_letters_are_changed_too():
    names = InventedNames(["Abcdef", "Uvwxyz"])
    made = [names.in_place_of("Ghi", random.Random(seed)) for seed in range(400)]
    assert {len(name) for name in made} == {6}
    assert {name[0] for name in made} == set("ABCDEFUVWXYZ")
    changed = sum(name[0] not in "AU" for name in made) / len(made)
    assert changed == pytest.approx(0.3 * 10 / 12, abs=0.08)  # two letters of twelve are A and U


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Jutrar Works", r"[A-Z][a-z]+ Works"),
        ("the Bumral Museum", r"the [A-Z][a-z]+ Museum"),
        ("Zordin Polpren", r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("piano", r"[a-z]+"),
        ("Route 66", r"[A-Z][a-z]+ [1-9]{2}"),
        ("1450", r"[1-9]{4}"),
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


def test_names_of_which_all_words_are_common_are_invented_too():
    people = [f"{first} {last}" for first in ("Anna", "Otto", "Emma") for last in ("Berg", "Holm")]
    names = InventedNames([*people * 3, "Notes", "Notes", "Notes"])
    for name in (*people, "Notes"):
        made = {names.in_place_of(name, random.Random(seed)) for seed in range(50)}
        assert len(made) > 20


def test_numbers_are_no_part_of_an_invented_name():
    names = InventedNames(["Paris", "Lyon", *(f"{year} Tour" for year in range(1950, 2000))])
    made = " ".join(names.in_place_of("Jacques", random.Random(seed)) for seed in range(200))
    assert not any(map(str.isdigit, made))
    assert re.fullmatch(r"[1-9]{4} Tour", names.in_place_of("1950 Tour", random.Random(0)))


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8), st.text(max_size=20))
def test_odd_names_are_invented_without_a_fault(known, name):
    made = InventedNames(known).in_place_of(name, random.Random(0))
    assert len(made.split()) <= max(1, len(name.split()))


def test_the_prompt_holds_the_name_among_words_that_are_labels():
    for log in _logs():
        first = _query(log.pieces[0])
        name = next(first.removesuffix(f" {x}") for x in OBJECT_KINDS if first.endswith(f" {x}"))
        rest = log.prompt.replace(name, " ", 1)
        for label in OBJECT_KINDS:
            rest = rest.replace(label, " ")
        assert name in log.prompt
        assert not rest.split()


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
    log = _writer(join_share=1.0).write(random.Random(seed))
    searches = list(_joint_searches(log))
    assert 1 <= len(searches) <= 2
    for names, _, read in searches:
        splits = (names[:at] for at, letter in enumerate(names) if letter == " ")
        assert any(first in read and names.removeprefix(first).strip() in read for first in splits)
    names, found, _ = searches[-1]
    listed = next(x for x in found.split(" | ") if x.startswith("neighbours")).split(": ")[1]
    values = listed.split("; ")
    assert any(names == f"{first} {second}" for first in values for second in values)


def test_a_joint_log_goes_on_from_what_was_found():
    ends = set()
    for seed in range(200):
        log = _writer(join_share=1.0).write(random.Random(seed))
        title = list(_joint_searches(log))[-1][1].split(" | ")[0]
        *_, last, _, answer = log.pieces
        if last.thought.startswith("both"):
            ends.add("answer")
            assert answer.text == title
        elif _query(last).startswith(f"{title} "):
            ends.add("search")
    assert ends == {"answer", "search"}


def test_joint_logs_do_without_documents_of_single_values():
    listing = [
        Document(f"country:{title}", title, ("neighbours: Spain; Italy",), "train")
        for title in ("France", "Portugal")
    ]
    kinds = {document.document_id: "country" for document in listing}
    writer = BrowsingWriter(
        listing, kinds, OBJECT_KINDS, show_whole_document, substitution_share=0.6, join_share=1.0
    )
    logs = [writer.write(random.Random(seed)) for seed in range(50)]
    assert all(_written(log)[0].thought.startswith("both neighbours") for log in logs)


def test_join_share_is_the_share_of_joint_logs():
    writer = _writer(join_share=0.3)
    logs = [writer.write(random.Random(seed)) for seed in range(400)]
    assert sum(any(_joint_searches(log)) for log in logs) == pytest.approx(120, abs=30)
