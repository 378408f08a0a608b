import random

from hypothesis import given
from hypothesis import strategies as st

from espalier_search.synthesis.webshaper.notation import rows_of
from espalier_search.synthesis.webshaper.notation_queries import entries_of
from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Union,
    canonical,
    constants,
    hops,
    signature,
)

IDS = st.sampled_from(["city:1", "city:2", "a | b", "x]", 'say "c"', "(", "é & f", "C"])
RELATIONS = st.sampled_from(["capital", "time zone", "r(", "a & b"])
QUERIES = st.recursive(
    st.builds(Constant, IDS)
    | st.lists(IDS, min_size=2, max_size=3, unique=True).map(lambda ids: ConstantSet(tuple(ids))),
    lambda inner: (
        st.builds(Projection, RELATIONS, inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: Intersection(tuple(parts)))
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: Union(tuple(parts)))
    ),
    max_leaves=8,
)


def _reordered(query, rng):
    match query:
        case Constant():
            return query
        case ConstantSet(ids):
            return ConstantSet(tuple(rng.sample(ids, len(ids))))
        case Projection(relation, inner):
            return Projection(relation, _reordered(inner, rng))
        case Intersection(parts) | Union(parts):
            shuffled = [_reordered(part, rng) for part in rng.sample(parts, len(parts))]
            if len(shuffled) > 2 and rng.random() < 0.5:
                shuffled = [type(query)(tuple(shuffled[:2])), *shuffled[2:]]
            return type(query)((*shuffled, rng.choice(shuffled)))


@given(QUERIES, st.integers(0, 1000))
def test_order_nesting_and_repetition_keep_the_canonical_text(query, seed):
    assert canonical(_reordered(query, random.Random(seed))) == canonical(query)


@given(QUERIES, QUERIES)
def test_equal_canonical_texts_have_equal_constants_and_hops(first, second):
    if canonical(first) == canonical(second):
        assert set(constants(first)) == set(constants(second))
        assert hops(first) == hops(second)


@given(IDS, IDS, RELATIONS)
def test_different_constants_give_different_texts(first, second, relation):
    texts = {canonical(Projection(relation, Constant(entity))) for entity in (first, second)}
    assert len(texts) == len({first, second})


def _renamed(query):
    match query:
        case Constant(entity_id):
            return Constant(f"new {entity_id}")
        case ConstantSet(ids):
            return ConstantSet(tuple(f"new {entity_id}" for entity_id in ids))
        case Projection(relation, inner):
            return Projection(relation, _renamed(inner))
        case Intersection(parts) | Union(parts):
            return type(query)(tuple(_renamed(part) for part in parts))


@given(QUERIES)
def test_a_signature_forgets_the_constants_alone(query):
    assert signature(_renamed(query)) == signature(query)
    assert canonical(_renamed(query)) != canonical(query)


def test_a_union_of_constants_reads_like_a_set():
    query = Projection("neighbours", ConstantSet(("b", "a")))
    assert canonical(query) == "neighbours([a | b])"
    assert signature(query) == "neighbours(C|C)"


def test_hops_is_the_longest_path_of_projections():
    chain = Projection("r", Projection("s", Constant("a")))
    assert hops(Projection("t", Intersection((chain, Projection("r", Constant("b")))))) == 3


def test_entries_run_from_the_constants_to_the_target():
    lists = (
        Projection("neighbours", ConstantSet(("fr", "de"))),
        Projection("used_in", Constant("eur")),
    )
    names = {"fr": "France", "de": "Germany", "eur": "Euro"}
    assert rows_of(entries_of(Projection("capital", Intersection(lists)), names)) == [
        ["C@{France | Germany}", "neighbours", "V@X1"],
        ["C@Euro", "used_in", "V@X1"],
        ["V@X1", "capital", "?T"],
    ]
