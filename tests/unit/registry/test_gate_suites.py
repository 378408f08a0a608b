"""The gate on suites that must not fall, and on questions that a version was trained on."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from espalier.records import RegistryError, publishing, read_manifest
from espalier.registry import promote
from espalier.registry.promotion import Contaminated
from espalier.registry.tracking import open_parent_run
from espalier.stages.register import run
from tests.unit.registry.conftest import QUESTIONS, exact, provenance

DIGEST = "9" * 64


def with_suite(bench, em, suite_em, *, contaminated=()):
    """A version with scores of its policies on the suite `sums`."""
    inputs = bench.inputs(em)
    ask_suite(inputs, suite_em, contaminated)
    return bench.register_inputs(inputs)


def ask_suite(inputs, suite_em, contaminated=()):
    """Publish the evaluation anew, with the suite."""
    folder = inputs["evaluation"]
    trained = read_manifest(folder).inputs["trained_policy"]
    results = json.loads((folder / "results.json").read_text())
    questions = pd.read_parquet(folder / "questions.parquet")
    results["suites"] = {"sums": {"digest": DIGEST}}
    rows = [scores(share, contaminated).assign(suite="sums", policy=policy)
            for policy, share in (("trained", suite_em), ("warm_start", 0.5))]  # fmt: skip
    with publishing(folder, provenance("evaluate", trained_policy=trained)) as draft:
        questions.to_parquet(draft.path / "questions.parquet", index=False)
        pd.concat(rows).to_parquet(draft.path / "suites.parquet", index=False)
        (draft.path / "results.json").write_text(json.dumps(results))


def scores(share, contaminated=()):
    tasks = [f"s{place}" for place in range(QUESTIONS)]
    marks = ["question" if task in contaminated else "" for task in tasks]
    return pd.DataFrame(
        {"task_id": tasks, "score": exact(share, QUESTIONS).astype(float), "contaminated": marks}
    )


def gate(bench, *, suite_em=None, contaminated=None, **settings):
    found = bench.gate(champion_em=None)
    config = found.config.model_copy(update={"must_not_fall": ("sums",), **settings})

    def judge(policy_dir, suite, digest):
        assert (suite, digest) == ("sums", DIGEST)
        assert suite_em is not None, "the champion had its scores already"
        bench.judged.append(policy_dir)
        return scores(suite_em)

    return replace(found, config=config, evaluate_suite=judge, contaminated=contaminated)


def test_a_better_challenger_that_falls_on_a_suite_is_refused(bench):
    with_suite(bench, 0.6, 0.6)
    promote(bench.model, gate(bench))
    with_suite(bench, 0.8, 0.4)
    with pytest.raises(RegistryError, match="max_fall"):
        promote(bench.model, gate(bench))
    assert bench.model.version("champion").version == "1"
    assert "sums" in bench.model.version("challenger").tags["espalier.gate.suite.sums"]


def test_a_champion_is_asked_a_suite_once(bench):
    bench.lead(0.5)
    with_suite(bench, 0.8, 0.6)
    with pytest.raises(RegistryError, match="max_fall"):
        promote(bench.model, gate(bench, suite_em=0.9))
    with pytest.raises(RegistryError, match="max_fall"):
        promote(bench.model, gate(bench))
    assert len(bench.judged) == 1


def test_a_version_without_a_result_on_the_suite_is_refused(bench):
    bench.register(0.8)
    with pytest.raises(RegistryError, match="no result"):
        promote(bench.model, gate(bench))


def test_tasks_that_one_was_trained_on_are_not_compared(bench):
    with_suite(bench, 0.6, 0.6)
    promote(bench.model, gate(bench))
    with_suite(bench, 0.8, 0.6, contaminated=("s0", "s199"))
    (suite,) = promote(bench.model, gate(bench)).comparison.suites
    assert (suite.gain, suite.questions, suite.excluded) == (0.0, QUESTIONS - 2, 2)


def test_questions_that_a_version_was_trained_on_are_left_out(bench):
    bench.register(0.8)

    def seen(version, asked):
        assert version.version == asked.version == "1"
        return Contaminated(frozenset({"t0", "t1", "not asked"}), "what the base was trained on")

    found = gate(bench, contaminated=seen, must_not_fall=(), min_questions=QUESTIONS - 2)
    for key, word in (("contaminated", "contaminated"), ("unknown_training", "the base")):
        strict = found.config.model_copy(update={key: "refuse"})
        with pytest.raises(RegistryError, match=word):
            promote(bench.model, replace(found, config=strict))
    comparison = promote(bench.model, found).comparison
    assert (comparison.questions, comparison.excluded) == (QUESTIONS - 2, 2)
    assert "2 questions" in (bench.model.version("champion").tags["espalier.gate_reason"])


def test_a_suite_that_was_asked_later_joins_the_version(bench):
    inputs = bench.inputs(0.8)
    parent = open_parent_run(bench.target, "resumed", {})
    for attempt in ("first", "second"):
        with parent.stage("register") as tracker:
            run(bench.profile, inputs, bench.root / attempt, tracker)
        ask_suite(inputs, 0.6)
    assert len(bench.model.versions()) == 1
    (suite,) = promote(bench.model, gate(bench)).comparison.suites
    assert (suite.challenger, suite.baseline) == (0.6, 0.5)
