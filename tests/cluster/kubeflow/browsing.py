"""Kubeflow's pages in a real browser, as a profile's user has them.

Of a whole Kubeflow two parts are missing here. The proxy before it, which knows the user, adds a
header to every request; here the browser adds it. The dashboard around the pages says which
profile's namespace is looked at (components/centraldashboard/public/library.js); here its script
says so at once.
"""

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.kubeflow import manifests
from tests.unit.k8s.allowed_verbs import PIPELINE

PICTURES = "ESPALIER_TEST_PICTURES"
"""Variable with the folder for pictures of the pages."""
_USER_HEADER = "kubeflow-userid"
_DASHBOARD = f"""
window.centraldashboard = {{ CentralDashboardEventHandler: {{ init: (begin) => {{
  const handler = {{}};
  begin(handler, true);
  handler.onNamespaceSelected("{PIPELINE}");
}} }} }};
"""
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_WITHIN_MS = 40_000
_SIZE = {"width": 1400, "height": 900}
FORM_PX = 1800
"""Height of the whole run form."""


@contextmanager
def opened(url):
    """A browser with an empty profile of its own, and one page in it."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=_ARGUMENTS)
        context = browser.new_context(
            viewport=_SIZE, extra_http_headers={_USER_HEADER: manifests.USER}
        )
        context.set_default_timeout(_WITHIN_MS)
        context.route(
            "**/dashboard_lib.bundle.js",
            lambda route: route.fulfill(content_type="text/javascript", body=_DASHBOARD),
        )
        try:
            yield Pages(context.new_page(), url)
        finally:
            browser.close()


class Pages:
    """What a user does on them."""

    def __init__(self, page, url):
        self.page = page
        self._url = url

    def open(self, route):
        """Go to one by what follows the # of its address."""
        # a change after the # alone loads nothing, and a form would keep what was typed into it
        self.page.goto("about:blank")
        self.page.goto(f"{self._url}/#{route}")

    def picture(self, name, *, height_px=_SIZE["height"]):
        """Keep what is seen, where a folder for that was named; a form is taller than a page."""
        if folder := os.environ.get(PICTURES):
            self.page.set_viewport_size({**_SIZE, "height": height_px})
            self.page.screenshot(path=Path(folder) / f"{name}.png")
            self.page.set_viewport_size(_SIZE)

    def upload(self, name, path):
        """Upload a compiled pipeline; gives its id and that of its version."""
        self.open("/pipeline_versions/new")
        self.page.locator("#newPipelineName").fill(name)
        self.page.locator("#createNewPrivatePipelineBtn").click()
        self.page.locator("#localPackageBtn").click()
        self.page.locator("input[type=file]").set_input_files(path)
        self.picture("upload")
        self.page.locator("#createNewPipelineOrVersionBtn").click()
        self.page.wait_for_url(re.compile(r"#/pipelines/details/.+/version/"))
        self.step("resolve-profile").wait_for()
        self.picture("pipeline")
        ids = self.page.url.partition("/details/")[2].partition("?")[0]
        return tuple(ids.split("/version/"))

    def open_run_form(self, pipeline, version, experiment, name):
        """The form of a new run, with a name for it."""
        asked = f"experimentId={experiment}&pipelineId={pipeline}&pipelineVersionId={version}"
        self.open(f"/runs/new?{asked}")
        self.page.locator("#profile").wait_for()
        self.page.get_by_label("Run name").fill(name)

    def fill(self, fields):
        """Type into fields of the form, by their names."""
        for field, text in fields.items():
            self.page.locator(f"[id='{field}']").fill(text)

    def start(self):
        """Press the button; gives the id of what was started."""
        self.page.locator("#startNewRunBtn").click()
        self.page.wait_for_url(re.compile(r"#/(runs|recurringrun)/details/"))
        return self.page.url.rpartition("/")[2].partition("?")[0]

    def step(self, name):
        """A step or a nested pipeline in the graph."""
        return self._node(f"task.{name}")

    def artifact(self, step, name):
        """An artifact of a step in the graph."""
        return self._node(f"artifact.{step}.{name}")

    def _node(self, key):
        label = self.page.locator(f"[id='{key}']")
        return self.page.locator(".react-flow__node button").filter(has=label)

    def open_run(self, run_id):
        """The graph of a run, once it shows what its steps came to."""
        self.open(f"/runs/details/{run_id}")
        self.page.get_by_test_id("execution-icon-active").first.wait_for()

    def enter(self, part):
        """Open a nested pipeline of the graph."""
        self.step(part).get_by_test_id("expand-button").dispatch_event("click")

    def select(self, node, tab=None):
        """Open the panel beside the graph, and one of its tabs."""
        # the graph may be larger than the page, and its nodes move with it
        node.dispatch_event("click")
        if tab is not None:
            self.page.get_by_role("button", name=tab, exact=True).click()
