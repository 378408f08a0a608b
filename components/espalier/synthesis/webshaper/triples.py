"""A query in WebShaper's own notation: a list of [X, relation, S] entries.

`C@name` is a constant, `V@X1` a variable, `?T` the target. The relation runs from the first to the
third item, so [C@Lyon, country, V@X1] reads "the country of Lyon is X1". A set of constants is one
entry, as in WebShaper's R-Union: [C@{Lyon | Bonn}, country, V@X1].
"""

from __future__ import annotations

from collections.abc import Mapping

from espalier.synthesis.webshaper.query import (
    Constant,
    ConstantSet,
    Intersection,
    Projection,
    Query,
    Union,
)

TARGET = "?T"
MEMBER = "is one of the union"
"""Joins the variable of a union's member to the variable of the union."""


def to_triples(query: Query, names: Mapping[str, str]) -> list[list[str]]:
    """The entries of `query`, constants first; `names` maps entity ids to names."""
    return _Writer(names).entries(query)


class _Writer:
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._entries: list[list[str]] = []
        self._variables = 0

    def entries(self, query: Query) -> list[list[str]]:
        self._constrain(query, TARGET)
        return self._entries

    def _constrain(self, query: Query, variable: str) -> None:
        match query:
            case Projection(relation, inner):
                self._entries.append([self._operand(inner), relation, variable])
            case Intersection(parts):
                for part in parts:
                    self._constrain(part, variable)
            case Union(parts):
                for part in parts:
                    self._entries.append([self._operand(part), MEMBER, variable])
            case Constant() | ConstantSet():
                self._entries.append([self._operand(query), MEMBER, variable])

    def _operand(self, query: Query) -> str:
        match query:
            case Constant(entity_id):
                return f"C@{self._names[entity_id]}"
            case ConstantSet(entity_ids):
                return f"C@{{{' | '.join(self._names[i] for i in entity_ids)}}}"
            case _:
                self._variables += 1
                variable = f"V@X{self._variables}"
                self._constrain(query, variable)
                return variable
