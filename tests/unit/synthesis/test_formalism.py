import json
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.records import DataError
from espalier.records.knowledge import Entity, KnowledgeGraph, Relation, Triple
from espalier_search.synthesis.webshaper.notation import (
    MAX_ENTRIES,
    FaultKind,
    FormalismError,
    Named,
    parse,
    parse_term,
    print_term,
    rows_of,
)
from espalier_search.synthesis.webshaper.notation_checks import check, equivalent
from espalier_search.synthesis.webshaper.notation_queries import answers, entries_of, query_of
from espalier_search.synthesis.webshaper.query import canonical, evaluate

from .test_query import IDS, QUERIES

ROWS = Path(__file__).parents[4] / "shared" / "data" / "webshaper" / "webshaper.500.jsonl"
NAMED = ["city:1", "city:2", "a | b", "x]", 'say "c"', "(", "é & f", "C"]
NAMES = st.text(st.sampled_from('abV@C{}|" \\?é\n0'), min_size=1, max_size=12)
FAIR = [["C@Lyon", "country", "V@X"], ["V@X", "currency", "?"]]
BROKEN = {
    FaultKind.NOT_A_LIST: {"entries": FAIR},
    FaultKind.NO_ENTRY: [],
    FaultKind.TOO_MANY_ENTRIES: FAIR * MAX_ENTRIES,
    FaultKind.ENTRY_NOT_A_LIST: [*FAIR, "V@X, size, C@3"],
    FaultKind.ENTRY_NOT_THREE_ITEMS: [*FAIR, ["V@X", "is landlocked"]],
    FaultKind.ITEM_NOT_TEXT: [*FAIR, ["V@X", "population", 3]],
    FaultKind.BLANK_RELATION: [*FAIR, ["V@X", " ", "C@3"]],
    FaultKind.ENTITY_IN_RELATION: [*FAIR, ["V@X", "left V@Y for", "C@Bonn"]],
    FaultKind.UNMARKED_ENTITY: [*FAIR, ["V@X", "population", "3"]],
    FaultKind.NAMELESS_ENTITY: [*FAIR, ["V@X", "population", "C@ "]],
    FaultKind.SEVERAL_ENTITIES: [*FAIR, ["V@X", "borders", "C@Italy and C@Spain"]],
    FaultKind.BROKEN_SET: [*FAIR, ["V@X", "borders", 'C@{"Italy | Spain}']],
    FaultKind.REPEATED_MEMBER: [*FAIR, ["V@X", "borders", "C@{Italy | Italy}"]],
    FaultKind.CONSTANT_CONSTANT_EDGE: [*FAIR, ["C@Lyon", "river", "C@Rhone"]],
    FaultKind.CONSTANT_BESIDE_TARGET: [*FAIR, ["C@Lyon", "pays in", "?"]],
    FaultKind.REPEATED_ENTRY: [*FAIR, FAIR[0]],
    FaultKind.ENTRY_ABOUT_ITSELF: [*FAIR, ["V@X", "borders", "V@X"]],
    FaultKind.NO_TARGET: [["C@Lyon", "country", "V@X"]],
    FaultKind.SEVERAL_TARGETS: [*FAIR, ["V@X", "capital", "?city"]],
    FaultKind.DISCONNECTED: [*FAIR, ["C@Bonn", "country", "V@Y"]],
    FaultKind.CYCLE: [*FAIR, ["V@X", "borders", "V@Y"], ["V@Y", "pays in", "?"]],
    FaultKind.LEAF_VARIABLE: [*FAIR, ["V@X", "capital", "V@Y"]],
}


def _kinds(rows):
    return {fault.kind for fault in check(rows)}


@pytest.mark.parametrize("kind", FaultKind)
def test_each_kind_of_fault_is_told_apart(kind):
    assert check(FAIR) == ()
    assert _kinds(BROKEN[kind]) - {FaultKind.REPEATED_ENTRY} == {kind} - {FaultKind.REPEATED_ENTRY}
    assert kind in _kinds(BROKEN[kind])


REPEATED = [*FAIR, ["V@X", "borders", "V@Y"], ["V@X", "borders", "V@Y"]]


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        ([*FAIR, ["?", "used in", "V@X"]], {FaultKind.CYCLE}),
        ([*REPEATED, ["C@A", "r", "V@Y"]], {FaultKind.REPEATED_ENTRY}),
        (REPEATED, {FaultKind.REPEATED_ENTRY, FaultKind.LEAF_VARIABLE}),
        ([["C@Lyon", "mail @ domain", "V@X"], FAIR[1]], set()),
        ([["C@A", "r", "V@X"], ["C@A", "s", "V@Y"], ["V@X", "t", "?"], ["V@Y", "u", "?"]], set()),
        (
            [*FAIR, [3, "", "Bonn"]],
            {FaultKind.ITEM_NOT_TEXT, FaultKind.BLANK_RELATION, FaultKind.UNMARKED_ENTITY},
        ),
        (
            [*FAIR, ["V@X", "score", "scored by V@Y"]],
            {FaultKind.UNMARKED_ENTITY},
        ),
        (
            [*FAIR, ["V@X", "score", "scored by V@Y and V@Z"]],
            {FaultKind.UNMARKED_ENTITY, FaultKind.SEVERAL_ENTITIES},
        ),
        (
            [*FAIR, ["V@X", "score", 'C@{a | a | "b}']],
            {FaultKind.REPEATED_MEMBER, FaultKind.BROKEN_SET},
        ),
    ],
)
def test_all_faults_of_rows_and_no_others_are_found(rows, kinds):
    assert _kinds(rows) == kinds


AROUND = (
    "the capital of C@Italy", "the V@X", "scored by V@Y", "(C@Italy)", " C@Italy", "for V@X years",
    "C @Italy or C@Spain", "?V@X", "member of C@{Italy | Spain}", "1 C@km", "v@X of V@Y", "-V@X",
)  # fmt: skip
SEVERAL = (
    "C@Italy and C@Spain", "C@Italy C@Spain", "V@X of C@Italy", "between C@Italy and C@Spain",
    "V@XV@Y", "C@C@Italy", "the V@X, the V@Y", "C@{C@Italy | Spain}",
)  # fmt: skip


@pytest.mark.parametrize(("items", "is_several"), [(AROUND, False), (SEVERAL, True)])
def test_words_around_an_entity_are_no_second_one(items, is_several):
    for item in items:
        kinds = _kinds([*FAIR, ["V@X", "score", item]])
        assert (FaultKind.SEVERAL_ENTITIES in kinds) is is_several, item
        assert kinds <= {FaultKind.UNMARKED_ENTITY, FaultKind.SEVERAL_ENTITIES}, item
        assert kinds, item


def test_a_fault_is_named_with_its_place():
    rows = [["V@X", "is landlocked"], *FAIR, ["C@Lyon", "river", "C@Rhone"]]
    assert [(fault.kind, fault.entry) for fault in check(rows)] == [
        (FaultKind.ENTRY_NOT_THREE_ITEMS, 0),
        (FaultKind.CONSTANT_CONSTANT_EDGE, 3),
    ]
    with pytest.raises(FormalismError, match="entry 3: entry_not_three_items"):
        parse(BROKEN[FaultKind.ENTRY_NOT_THREE_ITEMS])


@given(st.lists(NAMES.filter(str.strip), min_size=1, max_size=3, unique=True))
def test_any_constants_can_be_written_and_read_back(names):
    constant = Named(tuple(names))
    assert parse_term(print_term(constant)) == constant


@pytest.mark.skipif(not ROWS.is_file(), reason="the public WebShaper rows are not here")
def test_every_readable_public_row_prints_as_it_was():
    rows = [json.loads(line)["formalization"] for line in ROWS.open(encoding="utf-8")]
    readable = [row for row in rows if all(fault.entry is None for fault in check(row))]
    assert len(readable) > 100
    for row in readable:
        assert rows_of(parse(row)) == row
        assert equivalent(parse(row), parse(_renamed(row, random.Random(0))))


def _renamed(rows, rng):
    """The same question with other names of variables, in another order."""
    names = sorted({item for row in rows for item in (row[0], row[2]) if item.startswith("V@")})
    fresh = rng.sample([f"V@N{number}" for number in range(len(names))], len(names))
    new = dict(zip(names, fresh, strict=True))
    changed = [[new.get(row[0], row[0]), row[1], new.get(row[2], row[2])] for row in rows]
    return rng.sample(changed, len(changed))


@given(QUERIES, st.integers(0, 100))
def test_renamed_variables_are_equivalent_and_changed_relations_are_not(query, seed):
    names = {entity: entity for entity in NAMED}
    rows = rows_of(entries_of(query, names))
    renamed = parse(_renamed(rows, random.Random(seed)))
    assert equivalent(parse(rows), renamed)
    rows[-1][1] = "another relation"
    assert not equivalent(parse(rows), renamed)


@pytest.mark.parametrize("length", [6, 198])
def test_cycles_that_local_views_cannot_tell_apart_are_told_apart(length):
    ring = [[f"V@{n}", "r", f"V@{(n + 1) % length}"] for n in range(length)]
    triangles = [[f"V@{n}", "r", f"V@{n - 2 if n % 3 == 2 else n + 1}"] for n in range(length)]
    assert not equivalent(parse(ring), parse(triangles))
    assert equivalent(parse(ring), parse(_renamed(ring, random.Random(0))))


@given(QUERIES)
def test_a_query_survives_its_own_notation(query):
    names = {entity: entity for entity in NAMED}
    entries = entries_of(query, names)
    assert parse(rows_of(entries)) == entries
    assert canonical(query_of(entries, names)) == canonical(query)


@pytest.fixture(scope="module")
def random_graph():
    rng = random.Random(0)
    relations = ["capital", "time zone", "r(", "a & b"]
    entities = [
        Entity(name, name, "thing", hub=False, split="train", askable=True, document_id=name)
        for name in NAMED
    ]
    kinds = [
        Relation(name, name, "thing", "thing", functional=False, phrasings=("the {x}",))
        for name in relations
    ]
    ends = [(name, rng.choice(NAMED), rng.choice(NAMED)) for name in relations for _ in range(12)]
    return KnowledgeGraph(entities, kinds, [Triple(start, name, end) for name, start, end in ends])


@given(query=QUERIES)
def test_entries_have_the_answers_of_the_query_that_wrote_them(query, random_graph):
    names = {entity: entity for entity in NAMED}
    assert answers(entries_of(query, names), random_graph, names) == evaluate(query, random_graph)


@given(start=IDS)
def test_an_entry_is_answered_from_either_end(start, random_graph):
    backward = parse([["?", "capital", f"C@{{{json.dumps(start)}}}"]])
    found = defaultdict(set)
    for triple in random_graph.triples():
        if triple.relation == "capital":
            found[triple.object].add(triple.subject)
    assert answers(backward, random_graph, {start: start}) == found[start]


def test_what_has_no_answer_is_refused_with_the_reason(random_graph):
    with pytest.raises(FormalismError, match="cycle"):
        answers(parse(BROKEN[FaultKind.CYCLE]), random_graph, {})
    with pytest.raises(DataError, match="'Lyon'"):
        answers(parse(FAIR), random_graph, {})
    with pytest.raises(DataError, match=r"'currency'.* a & b, capital"):
        answers(parse([["V@X", "currency", "?"], ["C@(", "r(", "V@X"]]), random_graph, {"(": "("})
    with pytest.raises(DataError, match="target"):
        query_of(parse([["?", "capital", "V@X"], ["C@(", "r(", "V@X"]]), {"(": "("})


def _hostile(rng, depth=0):
    """Anything that a model may write where a formalization is expected."""
    draw = rng.random()
    if depth > 3 or draw < 0.2:
        return rng.choice([None, True, -1, 1e300, float("nan"), "", "V@X", {"V@X": []}])
    if draw < 0.4:
        return [_hostile(rng, depth + 1) for _ in range(rng.randrange(4))]
    length = 3 if rng.random() < 0.95 else rng.randrange(6)
    return [
        [_hostile_item(rng, is_relation=position == 1) for position in range(length)]
        for _ in range(rng.randrange(1, 6))
    ]


def _hostile_item(rng, *, is_relation):
    if is_relation and rng.random() < 0.85:
        return "r"
    if rng.random() < 0.85:
        return rng.choice(["?", "?T", "V@X", "V@Y", "C@a", "C@b", "C@{a | b}", "r", "V@Z"])
    return "".join(rng.choices('VC@?{}|" ab\\\n\x00\ud800', k=rng.randrange(8)))


def test_nothing_that_a_model_writes_crashes_or_passes_unseen():
    rng = random.Random(0)
    num_fair = 0
    for _ in range(10_000):
        rows = _hostile(rng)
        if check(rows):
            continue
        num_fair += 1
        ends = [item for row in rows for item in (row[0], row[2])]
        assert all(len(row) == 3 and row[1].strip() for row in rows)
        assert not any("V@" in row[1] or "C@" in row[1] for row in rows)
        assert all(end[:2] in ("V@", "C@") or end[:1] == "?" for end in ends)
        assert len({end for end in ends if end[:1] == "?"}) == 1
        assert not any(row[0][:2] == row[2][:2] == "C@" for row in rows)
        assert parse(rows_of(parse(rows))) == parse(rows)
    assert 10 < num_fair < 1000
