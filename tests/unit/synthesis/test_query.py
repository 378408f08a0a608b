import random

from hypothesis import given
from hypothesis import strategies as st

from espalier_search.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Union,
    canonical,
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


def test_sets_and_hops_of_a_query_are_as_written():
    query = Projection("neighbours", ConstantSet(("b", "a")))
    assert canonical(query) == "neighbours([a | b])"
    other = Projection("neighbours", ConstantSet(("c", "d")))
    assert signature(query) == signature(other) == "neighbours(C|C)"
    assert canonical(query) != canonical(other)
    chain = Projection("r", Projection("s", Constant("a")))
    assert hops(Projection("t", Intersection((chain, Projection("r", Constant("b")))))) == 3
