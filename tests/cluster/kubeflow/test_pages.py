"""Kubeflow's own pages over the pipeline: what a user sees of it, and can do there."""

import os
import time
import uuid

import pytest

from espalier.chain import CHAIN
from tests.cluster.kubeflow import browsing, form
from tests.cluster.kubeflow.runs import ACCOUNT, of_runs, submitted, tasks
from tests.unit.k8s.allowed_verbs import PIPELINE

STEPS = [stage.name.replace("_", "-") for stage in CHAIN]


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
    pages.open("/pipelines/details/{}/version/{}".format(*uploaded))
    for name in ("resolve-profile", "require-valid", *STEPS):
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
    done.nth(len(STEPS) + 1).wait_for(state="attached")
    assert done.count() == len(STEPS) + 2, "the stages, resolve-profile and require-valid"
    pages.picture("graph")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["validate", "warm-start", "train", "evaluate"])
def test_an_html_artifact_is_shown_whole(pages, finished, step):
    pages.open_run(finished["run_id"])
    pages.select(pages.artifact(step, "page"), "Visualization")
    frame = pages.page.frame_locator("iframe")
    frame.locator("body :visible").first.wait_for()
    assert frame.locator("body").inner_text().strip()
    assert frame.locator("body").evaluate("body => body.scrollWidth <= window.innerWidth")
    broken = "all => all.filter(one => !one.complete || !one.naturalWidth).length"
    assert frame.locator("img").evaluate_all(broken) == 0
    pages.picture(f"page-of-{step}")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["validate", "register"])
def test_a_markdown_artifact_is_shown_as_text(pages, finished, step):
    pages.open_run(finished["run_id"])
    pages.select(pages.artifact(step, "summary"), "Visualization")
    text = pages.page.locator(".markdown-viewer")
    text.wait_for()
    assert "| ---" not in text.inner_text(), "a table that is not one"
    pages.picture(f"summary-of-{step}")


@pytest.mark.slow
@pytest.mark.parametrize(("step", "artifact"), [("train", "figures"), ("train", "usage")])
def test_metrics_are_shown_as_a_table(pages, finished, step, artifact):
    pages.open_run(finished["run_id"])
    pages.select(pages.artifact(step, artifact), "Visualization")
    pages.page.get_by_text("Scalar Metrics").wait_for()
    pages.picture(f"{artifact}-of-{step}")


@pytest.mark.slow
def test_a_step_shows_its_own_log(pages, finished):
    pages.open_run(finished["run_id"])
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
    pages.open_run(refused["run_id"])
    failed = pages.step("require-valid").locator("[data-testid=ErrorIcon]")
    failed.wait_for()
    pages.picture("refused")
    pages.select(pages.step("require-valid"), "Logs")
    window = pages.page.get_by_test_id("logs-view-window")
    window.get_by_text("question_length (column question_words").first.wait_for()
    pages.picture("refused-log")


@pytest.mark.slow
def test_a_failed_validation_shows_its_report(pages, refused):
    pages.open_run(refused["run_id"])
    pages.select(pages.artifact("validate", "page"), "Visualization")
    frame = pages.page.frame_locator("iframe")
    frame.get_by_text("question_length").first.wait_for()
    pages.picture("refused-report")
    pages.select(pages.step("require-valid"))
    verdict = pages.page.get_by_text("verdict").first
    verdict.wait_for()
    pages.picture("refused-verdict")
