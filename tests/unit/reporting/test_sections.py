"""The report of a run as data: every section, from the artifacts that stages publish."""

import json
import re
import shutil
from dataclasses import asdict

import pandas as pd
import pytest

from espalier.config import EvaluationConfig
from espalier.evaluation import summarize
from espalier.records import ArtifactError
from espalier.reporting import open_run, report_sections, write_report, write_summary
from espalier.reporting.dataset import length_table, pass_rate_table
from espalier.reporting.tables import table_of
from espalier.reporting.transcripts import spread
from tests.factories.evaluation import a_row
from tests.factories.sample_run import (
    HOSTILE,
    STAGES,
    make_run,
    publish,
    refuse,
    train_in_phases,
    write_json,
)


def sections_of(run):
    return {section.title: section for section in report_sections(open_run(run))}


def rows_of(section, name):
    """The rows of a section's table by their first cell."""
    (table,) = (table for table in section.tables if table.name == name)
    return {row[0]: row[1:] for row in table.rows}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "sample")


@pytest.fixture(scope="module")
def sections(run):
    return sections_of(run)


def test_the_report_is_plain_data_and_repeats_itself(run, sections):
    text = json.dumps([asdict(section) for section in sections.values()], allow_nan=False)
    assert text == json.dumps([asdict(section) for section in sections_of(run).values()])
    assert json.dumps(HOSTILE)[1:-1] in text, "what shows it escapes it"
    for section in sections.values():
        for table in section.tables:
            assert {len(row) for row in table.rows} <= {len(table.columns)}, table.name


def test_key_figures_have_intervals_cost_and_registration(sections):
    figures = rows_of(sections["Key figures"], "Scores and cost")
    assert figures["trained, exact match"] == ("68.4 % (95 %: 65.4 to 71.4, n 1,000)",)
    assert figures["gain over warm start, points"] == ("+27.2 (95 %: +23.1 to +31.3)",)
    assert figures["before: warm start"] == ("41.2 %",)
    assert figures["time, all stages"] == ("9 min 53 s",)
    assert "version" in figures["registered as"][0]


def test_every_stage_has_its_cost_and_output(sections):
    stages = rows_of(sections["Flow"], "Stages")
    assert len(stages) == len(STAGES)
    time, share, memory, made = stages["train"]
    assert (time, memory) == ("5 min 11 s", "1.2 GB")
    assert "updates 21,300 tokens/s, 31 % of matmul peak" in made
    assert "63,000 tokens drafted from earlier answers, 97 % kept" in made
    assert share == 52.5
    assert sum(row[1] for row in stages.values()) == pytest.approx(100, abs=0.5)
    assert "32,017 documents" in stages["ingest"][3]


@pytest.mark.parametrize("last_stage", ["ingest", "warm_start", "register"])
def test_a_run_that_stopped_shows_the_rest_as_not_run(tmp_path, last_stage):
    found = sections_of(make_run(tmp_path / "run", last_stage=last_stage))
    missing = len(STAGES) - 1 - list(STAGES).index(last_stage)
    stages = rows_of(found["Flow"], "Stages")
    assert [row[0] for row in stages.values()].count("not run") == missing
    assert (found["Before and after"].note == "not run: evaluate") == (missing > 0)


def test_a_run_without_any_artifact_still_has_a_report(tmp_path):
    write_json(tmp_path / "profile.json", {"name": "laptop"})
    found = sections_of(tmp_path)
    assert {row[0] for row in rows_of(found["Flow"], "Stages").values()} == {"not run"}
    assert not {"Samples", "Curation", "Extraction"} & set(found)


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for write in (write_report, lambda run: write_summary(run, None)):
        with pytest.raises(ArtifactError, match=r"profile\.json"):
            write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_truncated_artifact_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    history = run / "trained_policy" / "history.parquet"
    history.write_bytes(history.read_bytes()[:100])
    with pytest.raises(ArtifactError, match=r"trained_policy/history\.parquet"):
        sections_of(run)


def with_results(run, results):
    """The run with another results.json."""

    def evaluate(path):
        write_json(path / "results.json", results)
        return {}

    shutil.rmtree(run / "evaluation", ignore_errors=True)
    publish(run, "evaluation", "evaluate", evaluate)
    return sections_of(run)["Before and after"]


@pytest.fixture
def unjudged(tmp_path):
    return make_run(tmp_path / "run", last_stage="ingest")


def test_groups_are_named_as_the_results_name_them(unjudged):
    by_steps = {str(n): {"em": 0.1 * n, "n": 50, "ci95": [0.0, 0.9]} for n in (1, 2, 10)}
    figures = {"em": 0.3, "f1": 0.3, "n": 150, "ci95": [0.2, 0.4], "by_steps": by_steps}
    results = {"eval": dict.fromkeys(("untrained", "warm_start", "trained"), figures)}
    found = with_results(unjudged, results)
    assert list(rows_of(found, "Exact match by steps")) == ["1 step", "2 steps", "10 steps"]
    assert rows_of(found, "Exact match by steps")["10 steps"][0] == "100.0 % (0.0 to 90.0, n 50)"


def test_memory_and_searches_are_shown_with_a_dash_where_missing(unjudged):
    figures = {"em": 0.3, "f1": 0.3, "n": 9, "ci95": [0.2, 0.4]}
    knows = {
        "closed_book_em": 0.125, "closed_book_em_ci95": [0.1, 0.15], "closed_book_n": 500,
        "grounded": 0.875, "grounded_ci95": [0.85, 0.9], "grounded_n": 480,
    }  # fmt: skip
    results = {"eval": {"untrained": figures, "warm_start": figures, "trained": figures | knows}}
    rows = rows_of(with_results(unjudged, results), "All questions")
    memory = rows["Exact match from memory, no tools"]
    assert memory[:3] == ("-", "-", "12.5 % (10.0 to 15.0, n 500)")
    assert rows["Answers that a search had returned"][2].startswith("87.5 %")
    assert "Right answers that a search had returned" not in rows, "nothing has it"


def test_pass_at_k_is_shown_for_each_measured_k(unjudged):
    figures = {"em": 0.3, "f1": 0.3, "n": 9, "ci95": [0.2, 0.4], "pass_at_2": 0.4}
    results = {"eval": {"trained": figures | {"pass_at_4": None, "pass_hat_2": 0.1}}}
    rows = rows_of(with_results(unjudged, results), "All questions")
    assert [name for name in rows if name.startswith("pass")] == [
        "pass@2, sampled", "pass^2, sampled",
    ]  # fmt: skip


def test_a_group_that_fell_is_marked_with_its_interval(unjudged):
    def answered(one, four):
        by_hops = {"1": {"em": one, "n": 50}, "4": {"em": four, "n": 50}}
        return {"em": 0.6, "f1": 0.6, "n": 100, "ci95": [0.5, 0.7], "by_hops": by_hops}

    fell = {"em": -0.32, "ci95": [-0.48, -0.16], "n": 50}
    by_hops = {"1": fell | {"em": -0.02, "ci95": [-0.06, 0.02]}, "4": fell}
    gain = {"em": -0.17, "ci95": [-0.25, -0.1], "by_hops": by_hops, "baseline": "warm_start"}
    policies = {"warm_start": answered(0.9, 0.68), "trained": answered(0.88, 0.36)}
    rows = rows_of(
        with_results(unjudged, {"eval": policies | {"gain": gain}}), "Exact match by hops"
    )
    assert rows["4 hops"][2:] == ("36.0 % (n 50)", "-32.0 (fell, -48.0 to -16.0)")
    assert "fell" not in rows["1 hop"][-1]


def test_suites_stand_below_the_held_out_questions(unjudged):
    headline = {"name": "pass_rate", "mean": 0.25, "ci95": [0.1, 0.4]}
    asked = {"headline": headline, "pass_at_1": 0.25, "n": 8, "excluded": 2, "lost": 0}
    policies = {
        "untrained": {"n": 0, "excluded": 10, "lost": 0},
        "warm_start": asked,
        "trained": asked | {"finish_reasons": {"max_tokens": 7}},
    }
    gain = {"mean": 0.125, "ci95": [-0.05, 0.3], "n": 8, "excluded": 2, "baseline": "warm_start"}
    suites = {"sums": {"headline": "pass_rate", "policies": policies, "gain": gain}}
    figures = {"em": 0.3, "f1": 0.3, "n": 9, "ci95": [0.2, 0.4]}
    found = with_results(unjudged, {"eval": {"trained": figures}, "suites": suites})
    assert found.tables[-1].name == "Suite sums: pass rate"
    rows = rows_of(found, "Suite sums: pass rate")
    score = ("no task left", "25.0 % (10.0 to 40.0)", "25.0 % (10.0 to 40.0)")
    assert rows["Score"] == (*score, "+12.5 (-5.0 to +30.0)")
    assert rows["Tasks it was trained on, left out"][:3] == ("10", "2", "2")
    assert rows["Ended: max tokens"][:3] == ("0", "0", "7")


def test_every_figure_of_an_evaluation_is_shown(unjudged):
    rows = [
        a_row(
            str(n), em=n % 2 == 0, f1=0.25, tool_calls=n % 7,
            samples=8 * (n < 11), samples_right=3 * (n < 11),
            lost_episodes=int(n == 3), broke_sandbox_episodes=2 * (n == 5),
            grounded=n % 3 == 0, closed_book_em=n < 2, closed_book_answer="x",
            finish_reason=("answered", "max_turns")[n % 2],
        )
        for n in range(20)
    ]  # fmt: skip
    figures = summarize(rows, EvaluationConfig(bootstrap_resamples=200), seed=0)
    found = with_results(
        unjudged, {"eval": {"untrained": figures, "warm_start": figures, "trained": figures}}
    )
    shown = rows_of(found, "All questions") | rows_of(found, "Why episodes ended")
    labels = {
        "em": ("Exact match, greedy", "50.0"), "f1": ("F1, greedy", "25.0"),
        "n": ("Questions", "20"),
        "sampled_n": ("Questions sampled", "11"), "tool_calls": ("Tool calls per episode", "2.85"),
        "lost_episodes": ("Episodes lost from outside, counted as wrong", "1"),
        "broke_sandbox_episodes": ("Episodes that broke their sandbox, wrong", "2"),
        "closed_book_em": ("Exact match from memory, no tools", "10.0"),
        "closed_book_n": ("Exact match from memory, no tools", "n 20"),
        "closed_book_answered": ("Stated an answer from memory", "100.0"),
        "grounded": ("Answers that a search had returned", "35.0"),
        "grounded_n": ("Answers that a search had returned", "n 20"),
        "grounded_right": ("Right answers that a search had returned", "40.0"),
        "finish_reasons": ("max turns", "10"),
    } | {f"pass_at_{k}": (f"pass@{k}, sampled", "") for k in (1, 4, 8)} | {
        f"pass_hat_{k}": (f"pass^{k}, sampled", "") for k in (4, 8)
    }  # fmt: skip
    has_no_row_of_its_own = {"ci95", "f1_ci95", "by_kind", "by_hops"}
    without = {name for name in figures if name not in labels} - has_no_row_of_its_own
    assert {name for name in without if not name.endswith("_ci95")} == set()
    for label, value in labels.values():
        assert value in shown[label][2], label
    low, high = figures["ci95"]
    assert f"{100 * low:.1f} to {100 * high:.1f}" in shown["Exact match, greedy"][2]


def test_curves_name_the_weights_that_were_kept(sections):
    curves = sections["Learning curves"]
    assert "Weights kept: step 80" in curves.note
    assert "Before the first step the policy answered 31.0% of them." in curves.note
    assert [(table.name, table.kind) for table in curves.tables] == [
        ("Continued pre-training", "lines"), ("Warm start", "lines"),
    ]  # fmt: skip
    warm = curves.tables[1]
    assert warm.columns == ("step", "loss", "dev em")
    assert [row[2] is None for row in warm.rows[:50]] == [True] * 49 + [False]


def test_a_long_history_is_thinned_and_says_so():
    table = table_of(pd.DataFrame({"step": range(1, 5002)}), "Loss")
    assert table.name == "Loss, one row of 3"
    assert len(table.rows) <= 2001
    assert (table.rows[0], table.rows[-1]) == ((1,), (5001,))


def test_a_stage_that_measured_nothing_says_so(tmp_path):
    run = make_run(tmp_path / "run", last_stage="prepare_policy")
    columns = {"step": pd.Series([], dtype=int), "loss": pd.Series([], dtype=float)}

    def no_steps(path):
        pd.DataFrame(columns).to_parquet(path / "history.parquet")
        return {}

    publish(run, "warm_policy", "warm_start", no_steps)
    note = sections_of(run)["Learning curves"].note
    assert "Warm start: warm start ran and has nothing to show here." in note


def test_without_a_curriculum_nothing_counts_as_screened(tmp_path):
    run = make_run(tmp_path / "run", last_stage="warm_start")
    profile = json.loads((run / "profile.json").read_text())
    profile["curriculum"]["enabled"] = False
    (run / "profile.json").write_text(json.dumps(profile))
    publish(run, "curriculum", "filter_curriculum", lambda _: {"candidates": 0, "kept": 0})
    sections = sections_of(run)
    assert "curriculum.enabled is false" in sections["Curriculum"].note
    funnel = rows_of(sections["From requested to trained rows"], "Rows by step")
    assert funnel["training questions"][3:] == (None, None)


def test_tasks_are_counted_by_pass_rate_with_empty_bins_kept():
    rates = pd.DataFrame(
        {"attempts": 4, "pass_rate": [0.0, 0.25, 0.25, 1.0], "kept": [False, True, True, False]}
    )
    assert pass_rate_table(rates).rows == (
        (0.0, 0, 1), (0.25, 2, 0), (0.5, 0, 0), (0.75, 0, 0), (1.0, 0, 1),
    )  # fmt: skip


def test_many_attempts_are_gathered_in_ten_steps():
    rates = pd.DataFrame({"attempts": [64], "pass_rate": [0.516], "kept": [True]})
    assert [row[1] for row in pass_rate_table(rates).rows] == [0] * 5 + [1] + [0] * 5


def test_the_curriculum_names_its_band(sections):
    assert "solves in 5 to 90 % of its attempts" in sections["Curriculum"].note


def test_synthesis_shows_what_was_asked_for_reached_and_refused(sections):
    found = sections["Synthesis"]
    assert rows_of(found, "Questions and demonstrations")["train"] == (6000, 5600)
    assert rows_of(found, "Drawn")["not unique"] == (13_693, 752, 1_531)
    assert found.note == "train: 5600 of 6000 tasks; the source yields no more"
    assert "Kinds with hubs: continent, currency." in sections["Entities by split"].note


def test_extracted_statements_are_counted_by_reason(sections):
    found = sections["Extraction"]
    assert rows_of(found, "Statements")["evidence not in document"] == (93,)
    assert rows_of(found, "Relations")["born in"] == (812, 850)


def test_the_funnel_counts_rows_from_request_to_training(sections):
    rows = rows_of(sections["From requested to trained rows"], "Rows by step")
    *counts, kept = rows["training questions"]
    assert counts == [6000, 21, 13, 600]
    assert 0 < kept < 600
    assert rows["plans (FAS)"] == (16, 10, 9, None, None)
    assert rows["negatives"][:3] == (7, 7, 7)


def test_curation_counts_dropped_rows_by_reason(sections):
    rows = rows_of(sections["Curation"], "Rows")
    assert (rows["before"], rows["near duplicate"]) == ((27, 20), (0, 8))
    diversity = rows_of(sections["Curation"], "Diversity")
    assert diversity["diversity of questions: mean words"] == (8.25,)


def test_samples_of_every_kind_of_data_are_shown(sections):
    counts = {table.name: len(table.rows) for table in sections["Samples"].tables}
    assert counts == {
        "Questions, drawn: chain, 1 step (6)": 2,
        "Questions, drawn: chain, 2 steps (6)": 2,
        "Questions, grown layer by layer: chain, 2 steps (1)": 1,
        "Plans: the first action, nothing executed (FAS) (9)": 4,
        "Reasoning over knowledge (FAS) (4)": 2,
        "Decisions among options, with their outcome (HAS) (6)": 4,
        "Calls that must not be made (7)": 2,
        "Trajectories of the teacher, one for each detour (1)": 1,
    }
    *_, teacher = sections["Samples"].tables
    _, text, known = teacher.rows[0]
    assert "assistant: <think> find the country </think> <search> Lyon country </search>" in text
    assert "answer Paris; finish answered" in known


def test_samples_come_from_the_whole_length_of_a_kind():
    assert spread(range(100), 4) == [0, 25, 50, 75]
    assert spread(range(3), 4) == [0, 1, 2]


@pytest.mark.parametrize("lengths", [[3], [1, 1, 2, 5], list(range(200)), [0, 10**6]])
def test_every_row_is_counted_in_the_bin_of_its_length(lengths):
    rows = length_table("words", lengths).rows
    assert sum(count for _, count in rows) == len(lengths)
    assert len(rows) <= 24
    for label, count in rows:
        first, last = int(re.match(r"\d+", label)[0]), int(re.search(r"\d+$", label)[0])
        assert count == sum(first <= length <= last for length in lengths)


def test_a_failed_validation_is_shown_with_its_fault(tmp_path):
    run = make_run(tmp_path / "run", last_stage="synthesize")
    publish(run, "validation_failed", "validate", refuse)
    found = sections_of(run)
    assert rows_of(found["Flow"], "Stages")["validate"][0] == "stopped the run"
    assert "tasks: expectation answer_is_in_evidence failed: task-1" in found["Validation"].note
    (table,) = found["Validation"].tables
    assert table.name == "Tasks: 0 of 1 expectations met, 0 of 6,900 rows dropped"
    assert table.rows[0][1:4] == ("failed", "critical", 2)
    assert table.rows[0][-1] == "task-1, task-2"


def test_phases_show_their_training_proposals_and_refusals(tmp_path):
    run = make_run(tmp_path / "phased", last_stage="ingest")
    write_json(run / "profile.json", {"self_play": {"name": "webrl", "posed_tasks": 64}})
    publish(run, "trained_policy", "train", train_in_phases)
    found = sections_of(run)["Terms and phases of training"]
    phases = rows_of(found, "Phases")
    rate = r"\d\d\.\d %"
    assert re.fullmatch(rf"1 to 20 {rate} {rate} 31 64 70 30 40 0\.25", " ".join(phases["1"]))
    assert re.fullmatch(
        rf"21 to 50 {rate} {rate} \(step 40\) 12 64 66 38 28 ", " ".join(phases["2"])
    )
    assert phases["3"][3:] == ("",) * 6
    assert rows_of(found, "Refused because") == {
        "too easy": (0, 36), "too hard": (21, 0), "asked before": (6, 2), "shorter chain": (3, 0),
    }  # fmt: skip


def test_a_run_without_phases_shows_none(sections):
    assert "Terms and phases of training" not in sections


def test_provenance_has_digests_versions_profile_and_attribution(run, sections):
    found = sections["Provenance"]
    manifest = json.loads((run / "trained_policy" / "manifest.json").read_bytes())
    assert rows_of(found, "Artifacts")["trained_policy"][0] == manifest["content"]
    digests = rows_of(found, "Digests of settings, files and inputs")["trained_policy"]
    assert digests == ("7", "c0" * 32, manifest["integrity"], f"x {'ab' * 32}")
    assert set(rows_of(found, "Versions")) == set(manifest["packages"])
    texts = rows_of(found, "Texts")
    assert json.loads(texts["Profile"][0])["name"] == "laptop"
    assert texts["Attribution of the knowledge"][0] == "GeoNames (https://example.org), CC BY 4.0"
    assert rows_of(found, "Registration")
