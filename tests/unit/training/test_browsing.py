import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.environments import Answer, Search, parse_action
from espalier.environments.search_qa.browsing import LogWriter, invented_name
from espalier.knowledge.documents import Document

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


class ShowsWholeDocument:
    """Shows every line, so that a test can check what an answer was read from."""

    def show(self, document, query):
        del query
        return " | ".join((document.title, *document.lines))


def _writer(substitution_share=0.6):
    return LogWriter(
        DOCUMENTS,
        KINDS,
        OBJECT_KINDS,
        ShowsWholeDocument(),
        substitution_share=substitution_share,
    )


def _logs(count=200, **settings_):
    writer = _writer(**settings_)
    return [writer.write(random.Random(seed)) for seed in range(count)]


def _written(log):
    return [parse_action(text) for text, written in log.pieces if written]


def test_the_same_generator_state_writes_the_same_log():
    assert _logs(50) == _logs(50)
    assert len({log.pieces for log in _logs(50)}) > 40


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_a_log_is_searches_each_followed_by_what_it_shows_and_an_answer(seed):
    log = _writer().write(random.Random(seed))
    assert [written for _, written in log.pieces] == [True, False] * (len(log.pieces) // 2) + [True]
    *searches, last = _written(log)
    assert searches
    assert all(isinstance(action, Search) for action in searches)
    assert isinstance(last, Answer)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_the_answer_stands_in_the_last_observation(seed):
    log = _writer().write(random.Random(seed))
    last_observation = log.pieces[-2][0]
    label = log.pieces[-3][0].split("<search>")[1]
    values = [
        v for line in last_observation.split(" | ")[1:] for v in line.split(": ")[1].split("; ")
    ]
    assert _written(log)[-1].text in values, (label, last_observation)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_every_search_starts_from_a_name_that_was_read_before(seed):
    log = _writer().write(random.Random(seed))
    read = log.prompt
    for text, written in log.pieces[:-1]:
        if written:
            query = parse_action(text).query
            label = next(label for label in OBJECT_KINDS if query.endswith(f" {label}"))
            assert query.removesuffix(f" {label}") in read
        else:
            read = text


def test_walks_have_one_to_four_searches():
    assert {len(log.pieces) // 2 for log in _logs()} == {1, 2, 3, 4}


def test_a_plan_names_the_lines_that_are_left_to_read():
    log = next(log for log in _logs() if len(log.pieces) == 7)
    plans = [
        re.search(r"<think> (.*) </think>", text)[1] for text, written in log.pieces if written
    ]
    first = plans[0].split(" , ")
    assert len(first) == 3
    assert [plan.split(" , ") for plan in plans[:3]] == [first, first[1:], first[2:]]


@pytest.mark.parametrize(("share", "invented"), [(0.0, False), (1.0, True)])
def test_names_are_invented_as_often_as_asked(share, invented):
    answers = {_written(log)[-1].text for log in _logs(substitution_share=share)}
    assert (answers <= KNOWN) is not invented
    if invented:
        assert len(answers - KNOWN) > len(answers & KNOWN)


def test_an_invented_name_is_the_head_of_one_and_the_tail_of_another():
    names = ["Abcdef", "Uvwxyz"]
    made = {invented_name(names, random.Random(seed)) for seed in range(50)}
    assert made == {"Abcdef", "Abcxyz", "Uvwdef", "Uvwxyz"}


def test_the_prompt_holds_the_name_among_words_that_are_labels():
    for log in _logs():
        first = _written(log)[0].query
        name = next(first.removesuffix(f" {x}") for x in OBJECT_KINDS if first.endswith(f" {x}"))
        rest = log.prompt.replace(name, " ", 1)
        for label in OBJECT_KINDS:
            rest = rest.replace(label, " ")
        assert name in log.prompt
        assert not rest.split()
