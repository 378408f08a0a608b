from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from espalier.config import Profile
from espalier.environments.search_qa import SearchQA
from espalier.evaluation.questions import questions_table, read_questions, score_question
from espalier.records import ArtifactError
from espalier.records.trajectory import FinishReason
from tests.factories.evaluation import a_row, a_task, a_trajectory

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


def test_exact_match_forgives_case_and_accents():
    task = a_task("t", gold="Saint-Étienne sur Mer")
    family = SearchQA(Profile())
    assert family.verify(task, "saint-etienne sur mer") == 1.0
    assert family.verify(task, "mer") == 0.0
    assert family.verify(task, None) == 0.0


def test_an_episode_without_an_answer_scores_nothing():
    row = score_question(a_task("t"), GROUPS, a_trajectory("t", None))
    assert (row.em, row.f1, row.answer, row.finish_reason) == (False, 0.0, None, "max_turns")


def test_sampled_answers_are_counted_beside_the_greedy_one():
    answers = ("Lyon", "Paris", "lyon", None)
    samples = [a_trajectory("t", a, is_right=a in ("Lyon", "lyon")) for a in answers]
    row = score_question(a_task("t"), GROUPS, a_trajectory("t", "Paris"), samples)
    assert (row.em, row.samples, row.samples_right) == (False, 4, 2)


def test_rows_come_back_from_parquet_as_they_were(tmp_path):
    rows = {"untrained": [a_row("a", answer=None, em=False)], "trained": [a_row("a"), a_row("b")]}
    pq.write_table(questions_table(rows), tmp_path / "questions.parquet")
    assert read_questions(tmp_path / "questions.parquet") == rows


def test_a_truncated_table_is_an_artifact_error(tmp_path):
    path = tmp_path / "questions.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match=r"questions\.parquet"):
        read_questions(path)


def test_a_table_from_before_losses_were_counted_has_none(tmp_path):
    table = questions_table({"trained": [a_row("a")]})
    former = table.drop_columns(["lost_episodes", "broke_sandbox_episodes"])
    pq.write_table(former, tmp_path / "questions.parquet")
    assert read_questions(tmp_path / "questions.parquet") == {"trained": [a_row("a")]}


def test_the_answer_of_a_lost_episode_earns_no_overlap():
    right = a_trajectory("t", "Lyon", is_right=True)
    lost = replace(right, finish_reason=FinishReason.SANDBOX_LOST, reward={})
    row = score_question(a_task("t"), GROUPS, lost, [lost, right])
    assert (row.em, row.f1, row.answer, row.lost_episodes) == (False, 0.0, "Lyon", 2)
