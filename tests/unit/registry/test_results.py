"""Held-out results: what is read, what is refused, and what is kept with a version."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from espalier.records import RegistryError
from espalier.registry import promote
from espalier.registry.registration import read_result, require_same_questions, write_answers

QUESTIONS = [("t0", "trained", 1), ("t1", "trained", 0), ("t0", "warm_start", 0)]


def evaluation(folder, rows=QUESTIONS, figures=None):
    folder.mkdir()
    columns = ["task_id", "policy", "em"]
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "questions.parquet")
    known = {"suite": {"digest": "d" * 64}, "eval": {"trained": {"em": 0.5, "ci95": None}}}
    (folder / "results.json").write_text(json.dumps(figures or known))
    return folder


def test_answers_and_figures_of_an_evaluation_are_read(tmp_path):
    result = read_result(evaluation(tmp_path / "e"))
    assert result.suite_digest == "d" * 64
    assert result.exact("trained") == {"t0": True, "t1": False}
    assert result.exact("warm_start") == {"t0": False}
    assert result.figure("trained", "em") == 0.5
    assert result.figure("trained", "n") is result.figure("trained", "em", "mean") is None


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([("t0", "warm_start", 1)], "no answers .*trained"),
        ([("t0", "trained", 1), ("t0", "trained", 0)], "several"),
    ],
)
def test_answers_that_judge_nothing_are_refused(tmp_path, rows, fault):
    result = read_result(evaluation(tmp_path / "e", rows))
    with pytest.raises(RegistryError, match=fault):
        result.exact("trained")


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("results.json", b"{", "readable"),
        ("questions.parquet", b"{", "readable"),
        ("results.json", b'{"suite": {}, "eval": {}}', r"suite\.digest"),
    ],
)
def test_an_evaluation_that_does_not_parse_is_refused(tmp_path, name, content, fault):
    folder = evaluation(tmp_path / "e")
    (folder / name).write_bytes(content)
    with pytest.raises(RegistryError, match=fault):
        read_result(folder)


def test_an_evaluation_without_a_column_is_refused(tmp_path):
    folder = evaluation(tmp_path / "e")
    bare = pd.DataFrame({"task_id": ["t0"], "policy": ["trained"]})
    bare.to_parquet(folder / "questions.parquet")
    with pytest.raises(RegistryError, match=r"\['em'\]"):
        read_result(folder)


def test_results_on_other_questions_are_not_compared():
    require_same_questions({"t0": True, "t1": False}, {"t1": True, "t0": True})
    for other in ({"t0": True}, {"t0": True, "t1": True, "t2": True, "t3": True}):
        with pytest.raises(RegistryError, match=f"{abs(len(other) - 2)} questions"):
            require_same_questions({"t0": True, "t1": False}, other)


def test_answers_of_a_champion_become_a_result(tmp_path):
    own = read_result(evaluation(tmp_path / "own"))
    answers = pd.DataFrame({"task_id": ["t0", "t1", "t2", "t3"], "em": [1.0, 0.0, 0.0, 0.0]})
    judged = write_answers(tmp_path / "judged", own, answers)
    assert judged.suite_digest == own.suite_digest
    assert judged.exact("trained") == {"t0": True, "t1": False, "t2": False, "t3": False}
    assert (judged.figure("trained", "em"), judged.figure("trained", "n")) == (0.25, 4)


def test_all_files_of_an_evaluation_are_kept_with_its_version(bench):
    bench.register(0.6)
    version = bench.model.version("challenger")
    folder = f"evaluation/{'s' * 16}"
    kept = ("results.json", "questions.parquet", "suite.json")
    assert all(bench.model.has_file(version, f"{folder}/{name}") for name in kept)
    assert not bench.model.has_file(version, f"{folder}/other.json")


def test_a_result_filed_under_another_suite_is_refused(bench):
    bench.register(0.6)
    version = bench.model.version("challenger")
    (filed,) = (bench.model_root() / version.run_id).rglob("results.json")
    figures = json.loads(filed.read_text())
    filed.write_text(json.dumps(figures | {"suite": {"digest": "x" * 64}}))
    with pytest.raises(RegistryError, match="xxxxxxxxxxxx"):
        promote(bench.model, bench.gate())


def test_a_version_without_an_evaluation_is_promoted_by_force_alone(bench):
    bench.register(0.6)
    version = bench.model.version("challenger")
    (filed,) = (bench.model_root() / version.run_id).rglob("results.json")
    filed.unlink()
    with pytest.raises(RegistryError, match="evaluation"):
        promote(bench.model, bench.gate())
    assert promote(bench.model, bench.gate(), force_reason="seen by eye").gate == "forced"
