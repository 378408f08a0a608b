import pandas as pd
import pytest

from espalier.config import ValidationConfig
from espalier.records import DataError
from espalier.validation import (
    TASK_SCHEMA,
    TRAJECTORY_SCHEMA,
    EntitySplits,
    Expectation,
    ExpectationRule,
    SplitTask,
    judge,
    task_columns,
    task_suite,
    text_suite,
    trajectory_columns,
    trajectory_suite,
)
from espalier.validation.judge import SuiteVerdict
from espalier.validation.report import describe, rendered
from espalier.validation.suites import between, is_type, one_of
from tests.factories.validation import FAMILY, a_task, a_trajectory

CONFIG = ValidationConfig(max_question_words=8, max_turns=3)


@pytest.fixture(scope="module")
def task_frame():
    tasks = [
        SplitTask(s, a_task(f"{s}-{n}", s)) for s in ("train", "dev", "heldout") for n in (0, 1)
    ]
    return task_columns(tasks, EntitySplits({}, frozenset()), FAMILY)


@pytest.fixture(scope="module")
def trajectory_frame():
    train = {name: a_task(name, "train") for name in ("t1", "t2")}
    return trajectory_columns([a_trajectory(name) for name in train], train, FAMILY)


def failures(frame, suite):
    return {f.expectation.name: f.rows for f in judge(frame, suite) if not f.success}


def with_value(frame, column, value):
    """`frame` with `value` in the last row of `column`."""
    changed = frame.copy()
    changed.loc[changed.index[-1], column] = value
    return changed


def test_sound_tasks_and_trajectories_meet_every_expectation(task_frame, trajectory_frame):
    assert failures(task_frame, task_suite(CONFIG)) == {}
    assert failures(trajectory_frame, trajectory_suite(CONFIG)) == {}


def test_every_column_but_the_bookkeeping_ones_is_judged():
    for suite, schema in (
        (task_suite(CONFIG), TASK_SCHEMA),
        (trajectory_suite(CONFIG), TRAJECTORY_SCHEMA),
    ):
        judged = {e.rule.column for e in suite if not e.name.startswith("type_of_")}
        assert set(schema) - judged <= {"row", "question", "query", "task_id"}


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        ("task_id", "train-0", "task_ids_are_unique"),
        ("split", "test", "splits_are_known"),
        ("is_in_own_file", False, "tasks_are_in_their_own_file"),
        ("blank_gold_answers", 1, "gold_answers_are_not_blank"),
        ("other_splits_of_query", 1, "splits_share_no_query"),
        ("entity_split_conflicts", 2, "splits_share_no_entity"),
        ("earlier_same_question", 1, "questions_are_unique"),
        ("earlier_same_query", 1, "queries_are_unique"),
        ("question_words", 9, "question_length"),
        ("question_words", 0, "question_length"),
    ],
)
def test_a_broken_task_fails_its_expectation_and_is_named(task_frame, column, value, name):
    found = failures(with_value(task_frame, column, value), task_suite(CONFIG))
    assert set(found) == {name}
    assert found[name][-1] == len(task_frame) - 1


@pytest.mark.parametrize(
    ("column", "value", "name"),
    [
        ("is_train_task", False, "tasks_are_train_tasks"),
        ("order_faults", 1, "messages_alternate"),
        ("call_faults", 1, "tool_calls_match_messages"),
        ("mask_faults", 1, "mask_covers_the_actions_only"),
        ("is_solved", False, "answers_are_verified"),
        ("is_answer_in_evidence", False, "answer_is_in_the_evidence"),
        ("grammar_faults", 1, "actions_follow_the_grammar"),
        ("turns", 4, "turns_are_few"),
        ("action_share", 0.99, "action_share"),
        ("action_share", 0.01, "action_share"),
    ],
)
def test_a_broken_trajectory_fails_its_expectation(trajectory_frame, column, value, name):
    found = failures(with_value(trajectory_frame, column, value), trajectory_suite(CONFIG))
    assert found == {name: (1,)}


def test_tables_of_another_form_or_without_rows_fail(task_frame):
    suite = task_suite(CONFIG)
    assert failures(task_frame.drop(columns=["query"]), suite)["columns"] == ()
    frame = task_frame.assign(question_words=task_frame["question_words"].astype(float))
    assert set(failures(frame, suite)) == {"type_of_question_words"}
    empty = pd.DataFrame({name: pd.Series(dtype=t) for name, t in TASK_SCHEMA.items()})
    assert "has_rows" in failures(empty, suite)
    repeated = with_value(task_frame, "task_id", "train-0")
    assert failures(repeated, suite)["task_ids_are_unique"] == (0, 5)


def test_what_evidence_asks_names_the_attribute_of_a_family():
    (reason,) = (
        one.reason for one in trajectory_suite(CONFIG) if one.name == "answer_is_in_the_evidence"
    )
    assert "answers_from_evidence = False" in reason


# ------------------------------------------------------------------------- other rules

FRAME = pd.DataFrame({"row": [0, 1, 2], "a": [1, 2, 3], "b": [3, 2, 1], "t": ["x", "y", "z"]})


def beside_others(rules):
    """Expectations of these rules, between one that holds and one that row 0 breaks."""
    named = {"holds": between("a", 0, 9), **rules, "too low": between("a", 2, 9)}
    return [Expectation(name, "tasks", "row", rule, "why") for name, rule in named.items()]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("ExpectColumnValuesToBeBetween", {"column": "a", "min_valu": 1, "max_value": 2}),
        ("ExpectColumnValuesToBeBetween", {"column": "a"}),
        ("ExpectColumnValuesToBeBetween", {"column": "a", "min_value": "x"}),
        ("ExpectColumnValuesToBeInSet", {"column": "a", "value_set": 3}),
        ("ExpectColumnValuesToBeUnique", {}),
        ("ExpectNothing", {"column": "a"}),
    ],
)
def test_a_rule_that_cannot_be_built_is_named(kind, arguments):
    with pytest.raises(DataError, match=f"tasks: expectation odd cannot .*{kind}"):
        judge(FRAME, beside_others({"odd": ExpectationRule(kind, arguments)}))


def test_rules_that_fail_on_their_own_fail_alone():
    """A badly configured one must not fail all others (great_expectations#10709)."""
    pattern = ExpectationRule("ExpectColumnValuesToMatchRegex", {"column": "t", "regex": "("})
    odd = {
        "bounds": between("a", 9, 1),
        "text": between("t", 1, 2),
        "column": between("nowhere", 1, 2),
        "set": one_of("nowhere", [1]),
        "type": is_type("a", "no_such_type"),
        "pattern": pattern,
    }
    holds, *broken, too_low = judge(FRAME, beside_others(odd))
    assert (holds.success, too_low.rows, too_low.problem) == (True, (0,), "")
    assert [(one.success, one.rows) for one in broken] == [(False, ())] * len(odd)
    verdict = SuiteVerdict("tasks", ["t0", "t1", "t2"], [holds, *broken, too_low])
    faults = verdict.faults(max_dropped_share=1.0)
    for name, one, fault in zip(odd, broken, faults, strict=True):
        assert fault.startswith(f"tasks: expectation {name} failed")
        assert one.problem
        assert one.problem in fault


def test_rules_across_columns_or_of_some_rows_name_rows():
    """Rules of pairs named none, conditions raised (great_expectations#6608, #11565, #11597)."""
    judge(FRAME, beside_others({}))  # imports the library as the stage does
    from great_expectations.expectations.row_conditions import Column

    of_some = {"column": "a", "max_value": 2}
    both = {"column_list": ["a", "b"]}
    rules = {
        "pair": ("ExpectColumnPairValuesAToBeGreaterThanB", {"column_A": "a", "column_B": "b"}),
        "sum": ("ExpectMulticolumnSumToEqual", {**both, "sum_total": 5}),
        "distinct": ("ExpectSelectColumnValuesToBeUniqueWithinRecord", both),
        "below": ("ExpectColumnValuesToBeBetween", {**of_some, "row_condition": Column("b") < 3}),
        "in": (
            "ExpectColumnValuesToBeBetween",
            {**of_some, "row_condition": Column("b").is_in([1, 2])},
        ),
    }
    named = {name: ExpectationRule(*rule) for name, rule in rules.items()}
    holds, *broken, too_low = judge(FRAME, beside_others(named))
    assert (holds.success, too_low.rows) == (True, (0,))
    expected = {"pair": (0, 1), "sum": (0, 1, 2), "distinct": (1,), "below": (2,), "in": (2,)}
    assert {one.expectation.name: one.rows for one in broken} == expected
    page = rendered(
        describe([SuiteVerdict("tasks", ["id-0", "id-1", "id-2"], broken)], [], {"train": 0}, {})
    )
    for rows in expected.values():
        assert f"<code>{', '.join(f'id-{row}' for row in rows)}</code>" in page


def test_no_suite_has_conditions_or_rules_across_columns():
    for expectation in (*task_suite(CONFIG), *trajectory_suite(CONFIG), *text_suite()):
        arguments = expectation.rule.arguments
        assert not {"row_condition", "condition_parser"} & arguments.keys()
        assert expectation.rule.column or expectation.critical
