from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from espalier.evaluation.questions import (
    FromMemory,
    is_grounded,
    questions_table,
    read_questions,
    score_question,
)
from espalier.records import ArtifactError, ToolCall
from espalier.records.trajectory import FinishReason, ToolResult
from tests.factories.evaluation import a_row, a_task, a_trajectory

SEARCH = ToolCall(name="search", arguments={"query": "q"})
GROUPS = {"kind": "chain", "hops": "1"}


def test_em_is_the_verifiers_verdict_and_f1_counts_shared_words():
    task = a_task("t", gold="Saint-Étienne sur Mer")
    found = a_trajectory("t", "saint-etienne sur mer", 3, is_right=True)
    right = score_question(task, GROUPS, found)
    assert right.em
    assert right.f1 == 1.0
    assert right.tool_calls == 3
    assert right.groups == GROUPS
    near = score_question(task, GROUPS, a_trajectory("t", "mer"))
    assert not near.em
    assert near.f1 == pytest.approx(2 * 1 / (1 + 3))


def test_an_episode_without_an_answer_scores_nothing():
    row = score_question(a_task("t"), GROUPS, a_trajectory("t", None))
    assert (row.em, row.f1, row.answer, row.finish_reason) == (False, 0.0, None, "max_turns")


def test_sampled_answers_are_counted_beside_the_greedy_one():
    answers = ("Lyon", "Paris", "lyon", None)
    samples = [a_trajectory("t", a, is_right=a in ("Lyon", "lyon")) for a in answers]
    row = score_question(a_task("t"), GROUPS, a_trajectory("t", "Paris"), samples)
    assert (row.em, row.samples, row.samples_right) == (False, 4, 2)


def test_the_answer_of_a_lost_episode_earns_no_overlap():
    right = a_trajectory("t", "Lyon", is_right=True)
    lost = replace(right, finish_reason=FinishReason.SANDBOX_LOST, reward={})
    row = score_question(a_task("t"), GROUPS, lost, [lost, right])
    assert (row.em, row.f1, row.answer, row.lost_episodes) == (False, 0.0, "Lyon", 2)


def searched(answer, *results, succeeded=True):
    found = [ToolResult(call=SEARCH, content=text, succeeded=succeeded) for text in results]
    return replace(a_trajectory("t", answer), tool_results=tuple(found))


@pytest.mark.parametrize(
    ("answer", "results", "grounded"),
    [
        ("Saint-Etienne", ["Lyon | country: France", "Saint-\u00c9tienne | country: France"], True),
        ("the Hague", ["Netherlands | seat: Hague, The"], True),
        ("York", ["New York | country: United States"], True),
        ("Niger", ["Nigeria | continent: Africa"], False),
        ("New York", ["Jersey | new", "York | country: England"], False),
        ("?", ["Lyon | country: France"], False),
        ("Lyon", [], False),
        (None, ["Lyon"], None),
    ],
)
def test_an_answer_is_grounded_in_one_result_of_its_searches(answer, results, grounded):
    assert is_grounded(searched(answer, *results)) is grounded


def test_failed_calls_and_lost_episodes_ground_no_answer():
    assert is_grounded(searched("Lyon", "no tool is named Lyon", succeeded=False)) is False
    lost = replace(searched("Lyon", "Lyon"), finish_reason=FinishReason.TIMEOUT, reward={})
    assert is_grounded(lost) is None


def test_rows_come_back_from_parquet_as_they_were(tmp_path):
    path = tmp_path / "questions.parquet"
    found = a_trajectory("a", "Lyon", is_right=True)
    said = FromMemory(is_right=False, answer="Paris")
    row = score_question(a_task("a"), GROUPS, found, grounded=True, from_memory=said)
    assert (row.grounded, row.closed_book_em, row.closed_book_answer) == (True, False, "Paris")
    rows = {"untrained": [a_row("a", answer=None, em=False)], "trained": [row, a_row("b")]}
    pq.write_table(questions_table(rows), path)
    assert read_questions(path) == rows


def test_a_table_that_is_not_whole_is_an_artifact_error(tmp_path):
    path = tmp_path / "questions.parquet"
    pq.write_table(questions_table({"trained": [a_row("a")]}).drop_columns(["em"]), path)
    with pytest.raises(ArtifactError, match=path.name):
        read_questions(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=path.name):
        read_questions(path)
