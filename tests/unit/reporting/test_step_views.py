"""What Kubeflow's UI shows of a step is made from the artifact that the step published."""

import json
import math
import re
from html import escape

import pandas as pd
import pytest

from espalier.chain import CHAIN
from espalier.config import Profile
from espalier.records import ArtifactError
from espalier.records.step_figures import STEP_FIGURES
from espalier.reporting.formats import words
from espalier.reporting.step_views import (
    opened_artifact,
    step_figures,
    step_page,
    step_summary,
)
from tests.factories import sample_run
from tests.factories.sample_run import HOSTILE, publish, write_json

PROFILE = Profile(name="mine").model_dump(mode="json")


@pytest.fixture
def artifact(tmp_path):
    def made(stage, fill):
        publish(tmp_path, stage, stage, fill)
        return opened_artifact(tmp_path / stage, PROFILE)

    return made


def loads_nothing(page):
    return not re.search(
        r"<(script|link|img|iframe)|<[^>]*\s(src|action)\s*=|url\((?!#)|@import", page
    )


def test_figures_of_training_are_the_last_measured_ones(artifact):
    run = artifact("train", sample_run.train)
    figures = step_figures("train", run)
    history = run.table("train", "history.parquet")
    assert figures["steps"] == 100
    assert figures["reward"] == history["reward"].iloc[-1]
    assert figures["dev_em"] == history["dev_em"].dropna().iloc[-1]
    assert figures["best_dev_em"] == history["dev_em"].max()
    assert (figures["best_step"], figures["rollout_tokens_per_s"]) == (80, 15_900)
    assert "seconds" not in figures, "these are the step's usage"
    assert [name for name in figures if name.startswith("best_")] == ["best_dev_em", "best_step"]


def test_figures_of_evaluation_come_with_their_intervals(artifact):
    figures = step_figures("evaluate", artifact("evaluate", sample_run.evaluate))
    assert figures["trained_em"] == 0.684
    assert (figures["gain_em"], figures["gain_em_low"], figures["gain_em_high"]) == (
        0.272, 0.231, 0.313,
    )  # fmt: skip
    assert figures["warm_start_em_low"] == pytest.approx(0.382)
    assert figures["untrained_pass_at_4"] == pytest.approx(0.12)


def test_shares_of_knowledge_come_with_their_intervals(artifact):
    def fill(path):
        trained = {"closed_book_em": 0.2, "closed_book_em_ci95": [0.1, 0.3], "grounded": 0.9}
        write_json(path / "results.json", {"eval": {"trained": trained}})
        return {}

    assert step_figures("evaluate", artifact("evaluate", fill)) == {
        "trained_closed_book_em": 0.2, "trained_closed_book_em_low": 0.1,
        "trained_closed_book_em_high": 0.3, "trained_grounded": 0.9,
    }  # fmt: skip


def test_a_figure_that_is_not_finite_is_left_out(artifact):
    def fill(path):
        rows = [{"step": 1, "loss": 2.0, "dev_em": math.nan}]
        pd.DataFrame(rows).to_parquet(path / "history.parquet")
        write_json(path / "run.json", {"sft_tokens_per_s": math.inf})
        return {"trajectories": 1}

    run = artifact("warm_start", fill)
    assert step_figures("warm_start", run) == {"steps": 1.0, "loss": 2.0}
    page = step_page("warm_start", run)
    assert "Learning curves" in page
    assert re.search(r"loss</th><td>2\s*</td>", page)


@pytest.mark.parametrize(
    ("stage", "fill", "said"),
    [
        ("warm_start", sample_run.warm_start, "warm_start_history.csv"),
        ("train", sample_run.train_in_phases, "Phase"),
        ("evaluate", sample_run.evaluate, "Before and after"),
    ],
)
def test_a_page_shows_results_and_loads_nothing(artifact, stage, fill, said):
    page = step_page(stage, artifact(stage, fill))
    assert said in page
    assert "<svg" in page
    assert "profile <b>mine</b>" in page
    assert HOSTILE not in page
    assert loads_nothing(page)


def test_every_figure_of_a_step_is_shown_with_its_denominator(artifact):
    # NeMo-RL#3880: figures of rollouts were computed and thrown away
    columns = {name: n + 0.125 for n, name in enumerate(STEP_FIGURES)} | {"step": 7.0}

    def train(path):
        pd.DataFrame([columns]).to_parquet(path / "history.parquet")
        return {"steps": 7}

    page = step_page("train", artifact("train", train))
    [table] = re.findall(r"train_history\.csv.*?</table>", page, re.DOTALL)
    cells = re.findall(r"<td>(.*?)</td>", table)
    named = dict(
        re.findall(
            r'<th scope="row">(.*?)</th>(.*?)</tr>', page.split("Last figures")[0], re.DOTALL
        )
    )
    for place, (name, figure) in enumerate(STEP_FIGURES.items()):
        assert float(cells[place]) == pytest.approx(columns[name], rel=1e-3), name
        assert escape(figure.scale) in named[words(name)], name


def test_curves_and_tables_show_the_phases(artifact):
    page = step_page("train", artifact("train", sample_run.train_in_phases))
    told = re.findall(r'aria-label="(Reward [^"]*)"', page)
    assert [line.endswith("Phases end at steps 20, 50.") for line in told] == [True]
    assert "ends of phases, where self-play proposed new tasks" in page
    assert re.search(r"too hard</th><td[^>]*>21</td>", page)


def test_a_step_that_trained_nothing_says_why(artifact):
    def handed_on(path):
        pd.DataFrame([{"step": 1, "loss": 2.0}]).to_parquet(path / "history.parquet")
        return {"texts": 0}

    run = artifact("continue_pretraining", handed_on)
    assert step_figures("continue_pretraining", run) == {}
    page = step_page("continue_pretraining", run)
    assert "the base policy was passed on unchanged" in page
    assert "<svg" not in page
    given = artifact("prepare_policy", sample_run.prepare_policy)
    assert step_figures("prepare_policy", given) == {}
    assert "The profile gives a model" in step_page("prepare_policy", given)


def failed(path):
    report = sample_run.verdict(success=False)
    (expectation,) = report["suites"]["tasks"]["expectations"]
    expectation |= {"arguments": {"column": "in_evidence"}, "observed": ["False", f"a|b{HOSTILE}"]}
    write_json(path / "validation.json", report)
    (path / "validation.html").write_text("<p>the page</p>")
    return {}


def test_the_page_of_a_validation_is_its_report(artifact):
    assert step_page("validate", artifact("validate", failed)) == "<p>the page</p>"


def test_a_report_that_is_gone_is_an_error(artifact):
    run = artifact("validate", sample_run.refuse)
    with pytest.raises(ArtifactError, match=r"validation\.html"):
        step_page("validate", run)


def registered(name):
    def fill(path):
        write_json(
            path / "registered.json",
            {"model_name": name, "policy_digest": "9d", "suite_digest": "5e",
             "data_digest": "da", "code_digest": "c0"},
        )  # fmt: skip
        write_json(
            path / "run.json",
            {"name": name, "version": "3", "model_uri": "models:/agent/3", "run_id": "r",
             "parent_run_id": "p", "tracking_uri": "http://ml_flow:5000"},
        )  # fmt: skip
        return {}

    return fill


def test_a_registration_says_version_alias_and_where(artifact):
    text = step_summary(artifact("register", registered("agent")))
    assert "## agent, version 3" in text
    assert "| alias | challenger, until it is promoted |" in text
    assert "| page | http://ml_flow:5000/#/models/agent/versions/3 |" in text
    assert "`espalier promote agent --version 3`" in text


def test_a_hostile_name_is_shown_as_it_is(artifact):
    """markdown-to-jsx of Kubeflow's pages takes a_b_c for emphasis, other than CommonMark."""
    heading, *_ = step_summary(artifact("register", registered("a_b_c|<script>"))).splitlines()
    assert heading == "## a\\_b\\_c\\|\\<script\\>, version 3"


def test_every_view_of_the_chain_can_be_made(artifact):
    """A stage that shows something has a function for it here, on the sample's artifacts."""
    fills = {
        "prepare_policy": sample_run.prepare_policy,
        "continue_pretraining": sample_run.prepare_policy,
        "warm_start": sample_run.warm_start,
        "train": sample_run.train,
        "evaluate": sample_run.evaluate,
        "validate": failed,
    }
    for stage in CHAIN:
        if stage.name not in fills:
            assert stage.shows in (None, "summary"), stage.name
            continue
        run = artifact(stage.name, fills[stage.name])
        assert stage.shows == "page"
        assert step_page(stage.name, run)
        json.dumps(step_figures(stage.name, run), allow_nan=False)
