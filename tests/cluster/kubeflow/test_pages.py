"""Kubeflow's own pages over the pipeline: what a user sees of it, and can do there."""

import os
import time
import uuid

import pytest

from tests.cluster.kubeflow import browsing, form
from tests.cluster.kubeflow.runs import ACCOUNT, of_runs, submitted, tasks
from tests.unit.k8s.allowed_verbs import PIPELINE

PARTS = {
    "data": ("ingest", "synthesize", "validate", "require-valid"),
    "training": (
        "prepare-policy", "continue-pretraining", "warm-start", "filter-curriculum", "train",
    ),
    "judgement": ("evaluate", "register"),
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(kubeflow):
    if "ESPALIER_TEST_KUBEFLOW_PAGES" not in os.environ:
        pytest.skip("no pages of Kubeflow: they are built where npm and chromium are installed")
    with browsing.opened(os.environ["ESPALIER_TEST_KUBEFLOW_PAGES"]) as found:
        yield found


@pytest.fixture(scope="module")
def uploaded(pages, tmp_path_factory):
    """(id, id of its version) of a pipeline that was compiled here and uploaded there."""
    path = form.compiled(tmp_path_factory.mktemp("compiled"), profile="laptop")
    return pages.upload(f"by-hand-{uuid.uuid4().hex[:8]}", path)


@pytest.fixture(scope="module")
def blank_form(kubeflow, pages, uploaded):
    """Opens the run form of the uploaded pipeline, for a run of that name."""

    def open_form(name):
        pages.open_run_form(*uploaded, form.experiment(kubeflow), name)

    return open_form


@pytest.fixture(scope="module")
def refused(kubeflow):
    """A run whose data were refused, as the API shows it."""
    run_id = os.environ.get("ESPALIER_TEST_KUBEFLOW_REFUSED") or submitted(
        "validation.max_question_words=1", name="refused-in-the-pages"
    )
    run = kubeflow.wait(run_id, within_s=900)
    assert run["state"] == "FAILED"
    return run


@pytest.mark.slow
def test_an_uploaded_pipeline_shows_every_stage(pages, uploaded):
    for part, steps in PARTS.items():
        pages.open("/pipelines/details/{}/version/{}".format(*uploaded))
        pages.step("resolve-profile").wait_for()
        pages.enter(part)
        for name in steps:
            pages.step(name).wait_for()


@pytest.mark.slow
def test_a_form_can_be_sent_as_it_opens(pages, blank_form):
    blank_form("as it opens")
    pages.page.locator("#startNewRunBtn:enabled").wait_for()
    assert pages.page.get_by_text("Missing parameter.").count() == 0
    pages.picture("run-form", height_px=browsing.FORM_PX)


def until_resolved(kubeflow, run_id, *, within_s=300):
    """Until the first step of a run has succeeded."""
    end = time.monotonic() + within_s
    while (states := tasks(kubeflow.run(run_id))).get("resolve-profile") != "SUCCEEDED":
        assert time.monotonic() < end, states
        time.sleep(2)


@pytest.mark.slow
def test_what_is_typed_into_the_form_reaches_the_run(kubeflow, pages, blank_form):
    blank_form("typed")
    pages.page.get_by_label("Service Account").fill(ACCOUNT)
    pages.fill(form.TYPED)
    pages.picture("run-form-filled", height_px=browsing.FORM_PX)
    run_id = pages.start()
    sent = kubeflow.run(run_id)["runtime_config"]["parameters"]
    assert {name: value for name, value in sent.items() if value != ""} == {
        **form.TYPED,
        "seed": 7,
    }
    assert kubeflow.run(run_id)["service_account"] == ACCOUNT
    until_resolved(kubeflow, run_id)
    pages.open_run(run_id)
    pages.select(pages.artifact("resolve-profile", "settings"), "Visualization")
    pages.page.locator(".markdown-viewer").get_by_text("training.steps = 2").wait_for()
    pages.picture("settings")
    of_runs("stop", run_id)


@pytest.mark.slow
def test_the_graph_of_a_finished_run_is_all_green(pages, finished):
    pages.open_run(finished["run_id"])
    done = pages.page.locator(".react-flow__node [data-testid=CheckCircleIcon]")
    done.nth(len(PARTS)).wait_for(state="attached")
    assert done.count() == len(PARTS) + 1, "the nested pipelines and resolve-profile"
    pages.picture("graph")


def entered(pages, run, part):
    """The graph of a nested pipeline of a run."""
    pages.open_run(run["run_id"])
    pages.enter(part)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_nested_pipeline_of_a_finished_run_is_all_green(pages, finished, part):
    entered(pages, finished, part)
    pages.step(PARTS[part][-1]).wait_for()
    done = pages.page.locator(".react-flow__node [data-testid=CheckCircleIcon]")
    done.nth(len(PARTS[part]) - 1).wait_for(state="attached")
    assert done.count() == len(PARTS[part])
    pages.picture(f"graph-of-{part}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("data", "validate"),
        ("training", "warm-start"),
        ("training", "train"),
        ("judgement", "evaluate"),
    ],
)
def test_an_html_artifact_is_shown_whole(pages, finished, part, step):
    entered(pages, finished, part)
    pages.select(pages.artifact(step, "page"), "Visualization")
    frame = pages.page.frame_locator("iframe")
    frame.locator("body :visible").first.wait_for()
    assert frame.locator("body").inner_text().strip()
    assert frame.locator("body").evaluate("body => body.scrollWidth <= window.innerWidth")
    broken = "all => all.filter(one => !one.complete || !one.naturalWidth).length"
    assert frame.locator("img").evaluate_all(broken) == 0
    pages.picture(f"page-of-{step}")


@pytest.mark.slow
def test_a_markdown_artifact_is_shown_as_text(pages, finished):
    entered(pages, finished, "judgement")
    pages.select(pages.artifact("register", "summary"), "Visualization")
    text = pages.page.locator(".markdown-viewer")
    text.wait_for()
    assert "| ---" not in text.inner_text(), "a table that is not one"
    pages.picture("summary-of-register")


@pytest.mark.slow
def test_figures_are_on_the_page_of_their_output(pages, finished):
    entered(pages, finished, "training")
    pages.select(pages.artifact("train", "trained_policy"), "Artifact Info")
    pages.page.get_by_role("link", name="trained_policy", exact=True).click()
    for figure in ("best_dev_em", "peak_rss_mb"):
        pages.page.get_by_text(figure, exact=True).wait_for()
    pages.picture("figures-of-train")


@pytest.mark.slow
def test_a_step_shows_its_own_log(pages, finished):
    entered(pages, finished, "judgement")
    pages.select(pages.step("evaluate"), "Logs")
    pages.page.get_by_test_id("logs-view-window").get_by_text("evaluate").first.wait_for()
    pages.picture("log")


@pytest.mark.slow
def test_a_schedule_is_made_from_the_form(kubeflow, pages, blank_form):
    blank_form("every-hour")
    pages.page.locator("#recurringToggle").click()
    pages.page.get_by_label("Catchup").uncheck()
    pages.page.get_by_label("Service Account").fill(ACCOUNT)
    pages.fill({"profile": "smoke", "seed": "9"})
    pages.picture("schedule-form", height_px=browsing.FORM_PX + 600)
    schedule_id = pages.start()
    pages.page.get_by_text("Recurring run details").wait_for()
    pages.picture("schedule")
    made = kubeflow.get(f"recurringruns/{schedule_id}")
    kubeflow.client.delete(f"/apis/v2beta1/recurringruns/{schedule_id}")
    assert made["trigger"]["periodic_schedule"]["interval_second"] == "3600"
    assert (made["namespace"], made["status"]) == (PIPELINE, "ENABLED")
    assert made["runtime_config"]["parameters"]["seed"] == 9


@pytest.mark.slow
def test_a_failed_validation_says_what_failed(pages, refused):
    entered(pages, refused, "data")
    failed = pages.step("require-valid").locator("[data-testid=ErrorIcon]")
    failed.wait_for()
    pages.picture("refused")
    pages.select(pages.step("require-valid"), "Logs")
    window = pages.page.get_by_test_id("logs-view-window")
    window.get_by_text("question_length (column question_words").first.wait_for()
    pages.picture("refused-log")


@pytest.mark.slow
def test_a_failed_validation_shows_its_report(pages, refused):
    entered(pages, refused, "data")
    pages.select(pages.artifact("validate", "page"), "Visualization")
    frame = pages.page.frame_locator("iframe")
    frame.get_by_text("question_length").first.wait_for()
    pages.picture("refused-report")
    pages.select(pages.step("require-valid"))
    verdict = pages.page.get_by_text("verdict").first
    verdict.wait_for()
    pages.picture("refused-verdict")
