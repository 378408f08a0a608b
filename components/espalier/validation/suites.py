"""The suites: every expectation with its rule, its weight and its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from espalier.config import ValidationConfig

SuiteName = Literal["tasks", "trajectories", "texts"]
Weight = Literal["critical", "row"]
"""A failing critical expectation stops the run; a row-wise one drops the rows that fail it."""


class ExpectationRule(NamedTuple):
    """The name of a class of great_expectations.expectations, and its arguments."""

    kind: str
    arguments: Mapping[str, object]

    @property
    def column(self) -> str:
        """The column that the rule checks; "" for a rule about the whole table."""
        return str(self.arguments.get("column", ""))


@dataclass(frozen=True, slots=True)
class Expectation:
    """One line of a suite."""

    name: str
    suite: SuiteName
    weight: Weight
    rule: ExpectationRule
    reason: str

    @property
    def critical(self) -> bool:
        """Whether a failure stops the run."""
        return self.weight == "critical"


def has_rows() -> ExpectationRule:
    """At least one row."""
    return ExpectationRule("ExpectTableRowCountToBeBetween", {"min_value": 1})


def has_columns(columns: Sequence[str]) -> ExpectationRule:
    """These columns and no other."""
    arguments = {"column_set": list(columns), "exact_match": True}
    return ExpectationRule("ExpectTableColumnsToMatchSet", arguments)


def is_type(column: str, type_name: str) -> ExpectationRule:
    """Values of one type: "str", "int64", "float64" or "bool"."""
    # Not ExpectColumnValuesToBeInTypeList, which up to 1.24 lacks the string type of pandas 3.
    return ExpectationRule("ExpectColumnValuesToBeOfType", {"column": column, "type_": type_name})


def unique(column: str) -> ExpectationRule:
    """All values are distinct."""
    return ExpectationRule("ExpectColumnValuesToBeUnique", {"column": column})


def one_of(column: str, values: Sequence[object]) -> ExpectationRule:
    """Every value is one of `values`."""
    return ExpectationRule(
        "ExpectColumnValuesToBeInSet", {"column": column, "value_set": list(values)}
    )


def between(column: str, low: float, high: float) -> ExpectationRule:
    """Every value is in the closed interval."""
    arguments = {"column": column, "min_value": low, "max_value": high}
    return ExpectationRule("ExpectColumnValuesToBeBetween", arguments)


def zero(column: str) -> ExpectationRule:
    """Every value is 0; for columns that count faults."""
    return one_of(column, [0])


def true(column: str) -> ExpectationRule:
    """Every value is true."""
    return one_of(column, [True])


SPLITS = ("train", "dev", "heldout")
"""Splits of the task files, in the order in which they are read."""

TASK_SCHEMA = {
    "row": "int64",
    "task_id": "str",
    "split": "str",
    "is_in_own_file": "bool",
    "question": "str",
    "question_words": "int64",
    "query": "str",
    "blank_gold_answers": "int64",
    "earlier_same_question": "int64",
    "earlier_same_query": "int64",
    "other_splits_of_query": "int64",
    "entity_split_conflicts": "int64",
}
"""Column of the tasks' frame -> type of its values (`task_columns` computes them)."""

TRAJECTORY_SCHEMA = {
    "row": "int64",
    "task_id": "str",
    "is_train_task": "bool",
    "turns": "int64",
    "order_faults": "int64",
    "call_faults": "int64",
    "mask_faults": "int64",
    "grammar_faults": "int64",
    "is_solved": "bool",
    "is_answer_in_evidence": "bool",
    "action_share": "float64",
}
"""Column of the trajectories' frame -> type of its values (`trajectory_columns` computes them)."""

TEXT_SCHEMA = {
    "row": "int64",
    "text_id": "str",
    "is_train_task": "bool",
    "order_faults": "int64",
    "grammar_faults": "int64",
    "hidden_names": "int64",
    "earlier_same_text": "int64",
}
"""Column of the agent texts' frame -> type of its values (`text_columns` computes them)."""

Line = tuple[str, Weight, ExpectationRule, str]
"""Name, weight, rule, reason."""


def task_suite(config: ValidationConfig) -> tuple[Expectation, ...]:
    """The suite of the task files."""
    length = between("question_words", 1, config.max_question_words)
    table: tuple[Line, ...] = (
        ("task_ids_are_unique", "critical", unique("task_id"), "results refer to tasks by id"),
        ("splits_are_known", "critical", one_of("split", SPLITS), _KNOWN),
        ("tasks_are_in_their_own_file", "critical", true("is_in_own_file"), _OWN_FILE),
        ("gold_answers_are_not_blank", "critical", zero("blank_gold_answers"), _BLANK),
        ("splits_share_no_query", "critical", zero("other_splits_of_query"), _QUERY_LEAK),
        ("splits_share_no_entity", "critical", zero("entity_split_conflicts"), _ENTITY_LEAK),
        ("questions_are_unique", "row", zero("earlier_same_question"), _REPEAT),
        ("queries_are_unique", "row", zero("earlier_same_query"), _REPEAT),
        ("question_length", "row", length, "the prompt must leave room for the episode"),
    )
    return (*_schema("tasks", TASK_SCHEMA), *_expectations("tasks", table))


def trajectory_suite(config: ValidationConfig) -> tuple[Expectation, ...]:
    """The suite of the teacher's trajectories."""
    share = between("action_share", config.min_action_share, config.max_action_share)
    turns = between("turns", 1, config.max_turns)
    table: tuple[Line, ...] = (
        ("tasks_are_train_tasks", "critical", true("is_train_task"), _FOREIGN_TASK),
        ("messages_alternate", "critical", zero("order_faults"), _ORDER),
        ("tool_calls_match_messages", "critical", zero("call_faults"), _CALLS),
        ("mask_covers_the_actions_only", "critical", zero("mask_faults"), _MASK),
        ("answers_are_verified", "critical", true("is_solved"), "a teacher must be right"),
        ("answer_is_in_the_evidence", "row", true("is_answer_in_evidence"), _GUESS),
        ("actions_follow_the_grammar", "row", zero("grammar_faults"), _GRAMMAR),
        ("turns_are_few", "row", turns, "an episode must end"),
        ("action_share", "row", share, _SHARE),
    )
    return (*_schema("trajectories", TRAJECTORY_SCHEMA), *_expectations("trajectories", table))


def text_suite() -> tuple[Expectation, ...]:
    """The suite of the agent texts."""
    table: tuple[Line, ...] = (
        ("text_ids_are_unique", "critical", unique("text_id"), "rows are traced back by their id"),
        ("tasks_are_train_tasks", "critical", true("is_train_task"), _FOREIGN_TASK),
        ("messages_alternate", "critical", zero("order_faults"), _ORDER),
        ("actions_follow_the_grammar", "row", zero("grammar_faults"), _GRAMMAR),
        ("no_hidden_name_is_said", "row", zero("hidden_names"), _HIDDEN_NAME),
        ("texts_are_unique", "row", zero("earlier_same_text"), _REPEAT),
    )
    return (*_schema("texts", TEXT_SCHEMA), *_expectations("texts", table))


_KNOWN = "every later stage reads one split"
_OWN_FILE = "a task in another split's file would be trained and judged on"
_BLANK = "no answer could be told right from wrong"
_QUERY_LEAK = "a query in two splits is judged on what it was trained on"
_ENTITY_LEAK = (
    "an entity of one split in a chain of another turns held-out accuracy into memory; "
    "hubs are exempt"
)
_HIDDEN_NAME = "a dev or held-out entity would not be new to the policy that is judged on it"
_REPEAT = "a repeated question would count twice; the first one stays"
_FOREIGN_TASK = "a demonstration of a dev or held-out task leaks its answer"
_ORDER = "the policy's part must be exactly the assistant messages"
_CALLS = "the recorded tool calls must be those that the messages show"
_MASK = "a wrong mask trains the policy on the tool's words"
_GUESS = (
    "an answer that no observation shows teaches guessing; a family whose answers are calculated "
    "or done sets `answers_from_evidence = False` (docs/add-environment.md)"
)
_GRAMMAR = "the environment would refuse the action"
_SHARE = "too little of the text is the policy's own, or it read no evidence"


def _expectations(suite: SuiteName, table: Iterable[Line]) -> Iterator[Expectation]:
    for name, weight, rule, reason in table:
        yield Expectation(name, suite, weight, rule, reason)


def _schema(suite: SuiteName, schema: dict[str, str]) -> tuple[Expectation, ...]:
    return (
        Expectation("has_rows", suite, "critical", has_rows(), "an empty table fails nothing else"),
        Expectation("columns", suite, "critical", has_columns(list(schema)), "all else reads them"),
        *(
            Expectation(
                f"type_of_{column}", suite, "critical", is_type(column, name), "all else reads it"
            )
            for column, name in schema.items()
        ),
    )
