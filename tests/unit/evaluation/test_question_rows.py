import pyarrow.parquet as pq
import pytest

from espalier.evaluation.questions import questions_table, read_questions, score_question
from espalier.records import ArtifactError
from tests.unit.evaluation.specimens import a_row, a_task, a_trajectory


def test_em_forgives_case_and_accents_and_f1_counts_shared_words():
    task = a_task("t", gold="Saint-Étienne sur Mer")
    right = score_question(task, a_trajectory("t", "saint-etienne sur mer", 3))
    assert right.em
    assert right.f1 == 1.0
    assert right.tool_calls == 3
    near = score_question(task, a_trajectory("t", "mer"))
    assert not near.em
    assert near.f1 == pytest.approx(2 * 1 / (1 + 3))


def test_an_episode_without_an_answer_scores_nothing():
    row = score_question(a_task("t"), a_trajectory("t", None))
    assert (row.em, row.f1, row.answer, row.finish_reason) == (False, 0.0, None, "max_turns")


def test_sampled_answers_are_counted_beside_the_greedy_one():
    samples = [a_trajectory("t", answer) for answer in ("Lyon", "Paris", "lyon", None)]
    row = score_question(a_task("t"), a_trajectory("t", "Paris"), samples)
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
