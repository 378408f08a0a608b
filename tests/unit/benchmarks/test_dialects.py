"""The table of the benchmark of dialects, from results that were kept."""

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.arms import Arm, result_of, together
from tests.benchmarks.dialects import PROFILE, asked, report
from tests.benchmarks.keeping import keep

WARM, TRAINED = [False, False, True, False], [True, True, True, False]
RESULT = {
    "em": {"untrained": 0.0, "warm_start": 0.25, "trained": 0.75},
    "gain": {"em": 0.5, "ci95": [0.0, 1.0]},
    "right": {"untrained": [False] * 4, "warm_start": WARM, "trained": TRAINED},
    "token_drift": 0,
    "compared_turns": 7,
    "best_step": 1,
    "timings": {},
}


def write_run(directory):
    """A finished run with two questions, as far as it is read."""
    evaluation, trained = directory / "evaluation", directory / "trained_policy"
    for folder in (evaluation, trained):
        folder.mkdir(parents=True)
    em = {"untrained": {"em": 0.0}, "warm_start": {"em": 0.0}, "trained": {"em": 0.5}}
    results = {"eval": {**em, "gain": RESULT["gain"]}}
    (evaluation / "results.json").write_text(json.dumps(results))
    counted = {"token_drift": 1, "compared_turns": 10}
    (evaluation / "run.json").write_text(json.dumps({"policies": {"a": counted, "b": counted}}))
    (trained / "run.json").write_text(json.dumps({**counted, "best_step": 8}))
    (directory / "timings.json").write_text("{}")
    rows = [
        {"task_id": task, "policy": policy, "em": policy == "trained" and task == "b"}
        for policy in em
        for task in "ba"
    ]
    pq.write_table(pa.Table.from_pylist(rows), evaluation / "questions.parquet")


def test_drift_of_training_and_evaluation_is_summed(tmp_path):
    write_run(tmp_path)
    result = result_of(tmp_path)
    assert (result["token_drift"], result["compared_turns"]) == (3, 30)
    assert result["right"]["trained"] == [False, True]
    assert result["right"]["warm_start"] == [False, False]
    assert result["best_step"] == 8


def test_seeds_of_a_dialect_are_paired_question_by_question():
    whole = together([RESULT, RESULT])
    assert (whole["seeds"], whole["n"]) == (2, 8)
    mean, low, high = whole["gain"]
    assert mean == pytest.approx(0.5)
    assert 0 < low < mean < high < 1
    assert (whole["token_drift"], whole["compared_turns"]) == (0, 14)


def test_the_last_line_has_the_figures_of_both_dialects(tmp_path, capsys):
    options = argparse.Namespace(out=tmp_path, profile=Path(PROFILE), set=[])
    arms = [Arm("tags", 0), Arm("hermes", 0), Arm("hermes", 1)]
    for arm in arms[:2]:
        keep(tmp_path / f"{arm.name}.json", asked(options), [RESULT], {})
    report(arms, options)
    *table, last = capsys.readouterr().out.splitlines()
    assert set(json.loads(last)) == {"tags", "hermes"}
    assert "0 of 7 turns" in table[1]
    assert "+50.0" in table[1]
    assert not any("hermes-1" in line for line in table)
