import re
import shutil
from html import escape
from html.parser import HTMLParser

import pandas as pd
import pytest

from espalier.config import EvaluationConfig
from espalier.evaluation import summarize
from espalier.records import ArtifactError
from espalier.records.step_figures import STEP_FIGURES
from espalier.reporting import write_report, write_summary
from espalier.reporting.charts import length_bins
from espalier.reporting.formats import words
from espalier.reporting.transcripts import spread
from tests.factories.evaluation import a_row
from tests.factories.sample_run import (
    STAGES,
    make_run,
    publish,
    refuse,
    train_in_phases,
    write_json,
)


class Page(HTMLParser):
    """Every tag with its attributes, and every id."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def values(self, name):
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "sample")


@pytest.fixture(scope="module")
def html(run):
    return write_report(run).read_text(encoding="utf-8")


def test_report_is_written_beside_the_artifacts(run, html):
    assert (run / "report.html").read_text(encoding="utf-8") == html
    assert not list(run.glob(".report*"))


def test_report_loads_nothing_and_runs_nothing(html):
    page = Page(html)

    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & set(page.tags)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert html.count("://") == 1  # the attribution's address, which is text
    addresses = page.values("href") + page.values("xlink:href")
    assert all(address.startswith(("#", "data:text/csv")) for address in addresses)


def test_text_that_a_model_wrote_is_escaped(html):
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(&#34;owned&#34;)&lt;/script&gt;" in html


def test_characters_that_change_text_direction_are_spelled_out(html):
    assert "\u202e" not in html
    assert r"\u{202e}gnp.exe" in html


def test_ids_are_unique_and_every_reference_resolves(html):
    page = Page(html)
    ids = page.values("id")

    assert len(ids) == len(set(ids))
    local = [a for a in page.values("href") + page.values("xlink:href") if a.startswith("#")]
    referred = {address[1:] for address in local} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert referred <= set(ids)


@pytest.mark.slow
def test_equal_artifacts_give_equal_bytes(run, html):
    assert write_report(run).read_text(encoding="utf-8") == html


def test_every_picture_says_what_it_shows(html):
    pictures = re.findall(r"<svg[^>]*>", html)

    assert len(pictures) == 22
    assert all('role="img"' in picture and "aria-label=" in picture for picture in pictures)


def test_the_report_names_the_figures_of_the_run(html):
    for figure in (
        "68.4 %",
        "+27.2",
        "65.4 to 71.4",
        "+23.1 to +31.3",
        "9 min 53 s",
        "32,017 documents",
        "updates 21,300 tokens/s, 31 % of matmul peak",
        "63,000 tokens drafted from earlier answers, 97 % kept",
    ):
        assert figure in html
    assert "GeoNames (https://example.org), CC BY 4.0" in html


def test_twenty_trajectories_are_coloured_by_mask_and_by_outcome(html):
    assert html.count('<details class="episode') == 20
    assert html.count('<details class="episode correct"') > 0
    for writer in ("prompt", "action", "observation"):
        assert f'<div class="passage {writer}"' in html
    assert "14 of 28 tokens are the policy&#39;s own (50 %)" in html


def test_tables_behind_the_figures_can_be_downloaded(html):
    downloads = Page(html).values("download")

    assert downloads == [
        "exact_match_by_hops.csv", "continue_pretraining_history.csv", "warm_start_history.csv",
        "train_history.csv", "pass_rates.csv", "data_lengths.csv",
    ]  # fmt: skip


def with_results(run, results):
    """The run with another results.json."""

    def evaluate(path):
        write_json(path / "results.json", results)
        return {}

    shutil.rmtree(run / "evaluation")
    publish(run, "evaluation", "evaluate", evaluate)
    return run


def test_groups_are_named_as_the_results_name_them(tmp_path):
    by_steps = {str(n): {"em": 0.1 * n, "n": 50, "ci95": [0.0, 0.9]} for n in (1, 2, 10)}
    figures = {"em": 0.3, "f1": 0.3, "n": 150, "ci95": [0.2, 0.4], "by_steps": by_steps}
    results = {"eval": dict.fromkeys(("untrained", "warm_start", "trained"), figures)}

    html = write_report(with_results(make_run(tmp_path / "run"), results)).read_text("utf-8")

    compared = html[html.index('id="comparison"') : html.index('id="curves"')]
    rows = re.findall(r'<tr><th scope="row">(\d+ \w+)</th>', compared)
    assert rows == ["1 step", "2 steps", "10 steps"]
    assert "hop" not in compared


def test_memory_and_searches_are_shown_with_a_dash_where_missing(tmp_path):
    figures = {"em": 0.3, "f1": 0.3, "n": 9, "ci95": [0.2, 0.4]}
    knows = {
        "closed_book_em": 0.125, "closed_book_em_ci95": [0.1, 0.15], "closed_book_n": 500,
        "grounded": 0.875, "grounded_ci95": [0.85, 0.9], "grounded_n": 480,
    }  # fmt: skip
    results = {"eval": {"untrained": figures, "warm_start": figures, "trained": figures | knows}}

    html = write_report(with_results(make_run(tmp_path / "run"), results)).read_text("utf-8")

    compared = html[html.index('id="comparison"') : html.index('id="curves"')]
    rows = dict(re.findall(r'<tr><th scope="row">([^<]+)</th>(.*?)</tr>', compared, re.DOTALL))
    shown = re.sub(r"<[^>]+>", " ", rows["Exact match from memory, no tools"]).split()
    assert shown[:2] == ["-", "-"]
    assert "12.5 % 10.0 to 15.0, n 500" in " ".join(shown)
    assert "87.5 %" in rows["Answers that a search had returned"]
    assert "Right answers that a search had returned" not in rows, "nothing has it"


def test_pass_at_k_is_shown_for_each_measured_k(tmp_path):
    figures = {"em": 0.3, "f1": 0.3, "n": 9, "ci95": [0.2, 0.4], "pass_at_2": 0.4}
    results = {"eval": {"trained": figures | {"pass_at_4": None, "pass_hat_2": 0.1}}}

    html = write_report(with_results(make_run(tmp_path / "run"), results)).read_text("utf-8")

    labels = re.findall(r'<th scope="row">(pass.\d.*?)</th>', html)
    assert labels == ["pass@2, sampled", "pass^2, sampled"]


def test_a_group_that_fell_is_marked_with_its_interval(tmp_path):
    def answered(one, four):
        by_hops = {"1": {"em": one, "n": 50}, "4": {"em": four, "n": 50}}
        return {"em": 0.6, "f1": 0.6, "n": 100, "ci95": [0.5, 0.7], "by_hops": by_hops}

    fell = {"em": -0.32, "ci95": [-0.48, -0.16], "n": 50}
    by_hops = {"1": fell | {"em": -0.02, "ci95": [-0.06, 0.02]}, "4": fell}
    gain = {"em": -0.17, "ci95": [-0.25, -0.1], "by_hops": by_hops, "baseline": "warm_start"}
    policies = {"warm_start": answered(0.9, 0.68), "trained": answered(0.88, 0.36)}
    results = {"eval": policies | {"gain": gain}}

    html = write_report(with_results(make_run(tmp_path / "run"), results)).read_text("utf-8")

    text = " ".join(re.sub(r"<[^>]+>", " ", html[html.index("Exact match by hops") :]).split())
    assert "36.0 % n 50 -32.0 fell, -48.0 to -16.0" in text
    assert text.count("fell,") == 1


def test_suites_stand_below_the_held_out_questions(tmp_path):
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
    results = {"eval": {"trained": figures}, "suites": suites}

    html = write_report(with_results(make_run(tmp_path / "run"), results)).read_text("utf-8")

    text = " ".join(re.sub(r"<[^>]+>", " ", html[html.index("Suite sums") :]).split())
    assert text.startswith(
        "Suite sums: pass rate Score no task left 25.0 % 10.0 to 40.0 25.0 % 10.0 to 40.0 "
        "+12.5 -5.0 to +30.0"
    )
    assert "trained on, left out 10 2 2" in text
    assert "Ended: max tokens 0 0 7" in text


@pytest.mark.parametrize("last_stage", ["ingest", "warm_start", "register"])
def test_a_run_that_stopped_shows_the_rest_as_not_run(tmp_path, last_stage):
    html = write_report(make_run(tmp_path / "run", last_stage=last_stage)).read_text("utf-8")

    missing = len(STAGES) - 1 - list(STAGES).index(last_stage)
    assert html.count('class="absent"') == missing
    assert ("not run" in html) == (missing > 0)


def test_a_run_without_any_artifact_still_has_a_report(tmp_path):
    write_json(tmp_path / "profile.json", {"name": "laptop"})
    html = write_report(tmp_path).read_text("utf-8")

    assert html.count('class="absent"') == len(STAGES)


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")

    with pytest.raises(ArtifactError, match=r"profile\.json"):
        write_summary(tmp_path, None)
    with pytest.raises(ArtifactError, match=tmp_path.name):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_truncated_artifact_is_named_and_no_report_is_written(tmp_path):
    run = make_run(tmp_path / "run")
    history = run / "trained_policy" / "history.parquet"
    history.write_bytes(history.read_bytes()[:100])

    with pytest.raises(ArtifactError, match=r"trained_policy/history\.parquet"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_synthesis_tables_show_what_was_asked_for_reached_and_refused(html):
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())

    assert "train 6,000 5,600" in text
    assert "not unique 13,693 752 1,531" in text
    assert "train: 5600 of 6000 tasks; the source yields no more" in text
    assert "Kinds with hubs: continent, currency" in text


def test_extracted_statements_are_counted_by_reason(html):
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split())

    assert "evidence not in document 93" in text
    assert "Relations kept proven born in 812 850" in text


def section(html, title):
    """The text of one part of the data page."""
    start = html.index(f"<h3>{title}</h3>")
    end = min(html.find(mark, start + 1) % (len(html) + 1) for mark in ("<h3>", "</section>"))
    return " ".join(re.sub(r"<svg.*?</svg>|<[^>]+>", " ", html[start:end], flags=re.S).split())


def test_the_funnel_counts_rows_from_request_to_training(html):
    text = section(html, "From requested to trained rows")

    kept = int(re.search(r"training questions 6,000 21 13 600 (\d+) ", text)[1])
    assert 0 < kept < 600
    assert "plans (FAS) 16 10 9 reasoning (FAS) 4 4" in text
    assert text.endswith("negatives 7 7 7")


def test_curation_counts_dropped_rows_by_reason(html):
    text = section(html, "Curation")

    assert "before 27 20" in text
    assert "near duplicate 0 8" in text
    assert "mean words 8.25" in text


def test_samples_of_every_kind_of_data_are_shown(html):
    text = section(html, "Samples")

    for title in (
        "Questions, drawn: chain, 1 step (6)",
        "Questions, drawn: chain, 2 steps (6)",
        "Questions, grown layer by layer: chain, 2 steps (1)",
        "Plans: the first action, nothing executed (FAS) (9)",
        "Reasoning over knowledge (FAS) (4)",
        "Decisions among options, with their outcome (HAS) (6)",
        "Calls that must not be made (7)",
        "Trajectories of the teacher, one for each detour (1)",
    ):
        assert title in text
    assert text.count("style incorrect") == text.count("style correct") == 2
    assert html.count('<details class="sample"') == 2 + 2 + 1 + 4 + 2 + 4 + 2 + 1


def test_samples_come_from_the_whole_length_of_a_kind():
    assert spread(range(100), 4) == [0, 25, 50, 75]
    assert spread(range(3), 4) == [0, 1, 2]


@pytest.mark.parametrize("lengths", [[3], [1, 1, 2, 5], list(range(200)), [0, 10**6]])
def test_every_row_is_counted_in_the_bin_of_its_length(lengths):
    bins = length_bins(lengths)

    assert bins["rows"].sum() == len(lengths)
    assert len(bins) <= 24
    for start, width, rows in zip(bins["length"], bins["width"], bins["rows"], strict=True):
        assert rows == sum(start <= length < start + width for length in lengths)


def test_a_run_without_agent_texts_shows_none_of_their_kinds(tmp_path):
    html = write_report(make_run(tmp_path / "run", last_stage="ingest")).read_text("utf-8")

    assert "<h3>Samples</h3>" not in html
    assert "<h3>Curation</h3>" not in html


def test_the_step_whose_weights_were_kept_is_named(html):
    assert "Weights kept: step 80" in html
    assert "Before the first step the policy answered 31.0% of them." in html


def test_a_failed_validation_is_shown_with_its_fault(tmp_path):
    run = make_run(tmp_path / "run", last_stage="synthesize")
    publish(run, "validation_failed", "validate", refuse)

    html = write_report(run).read_text("utf-8")

    assert "stopped the run" in html
    assert "tasks: expectation answer_is_in_evidence failed: task-1" in html
    assert html.count('class="absent"') == len(STAGES) - 2


def test_a_stage_that_measured_nothing_says_so(tmp_path):
    run = make_run(tmp_path / "run", last_stage="prepare_policy")
    columns = {"step": pd.Series([], dtype=int), "loss": pd.Series([], dtype=float)}

    def no_steps(path):
        pd.DataFrame(columns).to_parquet(path / "history.parquet")
        return {}

    publish(run, "warm_policy", "warm_start", no_steps)

    assert "warm start ran and has nothing to show here" in write_report(run).read_text("utf-8")


@pytest.fixture(scope="module")
def phased_html(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "phased", last_stage="filter_curriculum")
    write_json(run / "profile.json", {"self_play": {"name": "webrl", "posed_tasks": 64}})
    publish(run, "trained_policy", "train", train_in_phases)
    return write_report(run).read_text("utf-8")


def test_each_phase_shows_its_training_and_its_proposals(phased_html):
    text = section(phased_html, "Phases")

    rate = r"\d\d\.\d %"
    assert re.search(rf"1 1 to 20 {rate} {rate} 31 64 70 30 40 0\.25 ", text)
    assert re.search(rf"2 21 to 50 {rate} {rate} \(step 40\) 12 64 66 38 28 ", text)
    assert re.search(rf"3 51 to 100 {rate} {rate} Refused", text)


def test_refused_proposals_are_counted_by_reason_and_phase(phased_html):
    text = section(phased_html, "Phases")

    reasons = "too easy 0 36 too hard 21 0 asked before 6 2 shorter chain 3 0"
    assert text.endswith(f"Refused because phase 1 phase 2 {reasons}")


def test_curves_mark_where_phases_ended(phased_html):
    told = re.findall(r'aria-label="(Reward [^"]*)"', phased_html)

    assert [line.endswith("Phases end at steps 20, 50.") for line in told] == [True]
    assert "ends of phases, where self-play proposed new tasks" in phased_html


def test_a_run_without_phases_shows_none(html):
    assert "<h3>Phases</h3>" not in html
    assert "Phases end" not in html


def shown_rows(html):
    """The text of each row of a table by its first cell."""
    rows = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', html, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]+>", " ", cells).split()) for name, cells in rows}


def test_every_figure_of_a_step_is_shown_with_its_denominator(tmp_path):
    # NeMo-RL#3880: figures of rollouts were computed and thrown away
    run = make_run(tmp_path / "run")
    columns = {name: n + 0.125 for n, name in enumerate(STEP_FIGURES)} | {"step": 7.0}
    shutil.rmtree(run / "trained_policy")

    def train(path):
        pd.DataFrame([columns]).to_parquet(path / "history.parquet")
        write_json(path / "run.json", {"seconds": 1.0, "peak_rss_mb": 1.0})
        return {"steps": 7}

    publish(run, "trained_policy", "train", train)
    page = write_report(run).read_text(encoding="utf-8")
    [table] = re.findall(r"train_history\.csv.*?</table>", page, re.DOTALL)
    cells = re.findall(r"<td>(.*?)</td>", table)
    named = shown_rows(page)
    for place, (name, figure) in enumerate(STEP_FIGURES.items()):
        assert float(cells[place]) == pytest.approx(columns[name], rel=1e-3), name
        assert escape(figure.scale) in named[words(name)], name


def test_every_figure_of_an_evaluation_is_shown(tmp_path):
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
    results = {"eval": {"untrained": figures, "warm_start": figures, "trained": figures}}
    shown = shown_rows(write_report(with_results(make_run(tmp_path / "run"), results)).read_text())
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
        assert value in shown[label], label
    low, high = figures["ci95"]
    assert f"{100 * low:.1f} to {100 * high:.1f}" in shown["Exact match, greedy"]
