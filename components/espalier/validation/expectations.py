"""What one expectation is: a rule about a table, how much it weighs, and why it is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

SuiteName = Literal["tasks", "trajectories", "texts"]
Weight = Literal["critical", "row"]
"""A failing critical expectation stops the run; the other kind drops the rows that break it."""


class Rule(NamedTuple):
    """A class of great_expectations.expectations, by name, and its arguments."""

    kind: str
    arguments: Mapping[str, object]

    @property
    def column(self) -> str:
        """The column that is judged; empty for a rule about the whole table."""
        return str(self.arguments.get("column", ""))


@dataclass(frozen=True, slots=True)
class Expectation:
    """One line of a suite."""

    name: str
    suite: SuiteName
    weight: Weight
    rule: Rule
    reason: str

    @property
    def critical(self) -> bool:
        """Whether a failure stops the run."""
        return self.weight == "critical"


def has_rows() -> Rule:
    """At least one row."""
    return Rule("ExpectTableRowCountToBeBetween", {"min_value": 1})


def has_columns(columns: Sequence[str]) -> Rule:
    """These columns and no other."""
    arguments = {"column_set": list(columns), "exact_match": True}
    return Rule("ExpectTableColumnsToMatchSet", arguments)


def is_type(column: str, type_name: str) -> Rule:
    """Values of one type: "str", "int64", "float64" or "bool"."""
    # Not ExpectColumnValuesToBeInTypeList: up to 1.24 it does not know the string type of pandas 3.
    return Rule("ExpectColumnValuesToBeOfType", {"column": column, "type_": type_name})


def unique(column: str) -> Rule:
    """No value twice."""
    return Rule("ExpectColumnValuesToBeUnique", {"column": column})


def one_of(column: str, values: Sequence[object]) -> Rule:
    """Every value is one of `values`."""
    return Rule("ExpectColumnValuesToBeInSet", {"column": column, "value_set": list(values)})


def between(column: str, low: float, high: float) -> Rule:
    """Every value is in the closed interval."""
    arguments = {"column": column, "min_value": low, "max_value": high}
    return Rule("ExpectColumnValuesToBeBetween", arguments)


def zero(column: str) -> Rule:
    """Every value of a column that counts faults is 0."""
    return one_of(column, [0])


def true(column: str) -> Rule:
    """Every value is true."""
    return one_of(column, [True])
