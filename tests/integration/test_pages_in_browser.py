"""The report, and pages of steps in Kubeflow's UI: what cannot be read off their HTML."""

from __future__ import annotations

import pytest

from espalier.config import Profile
from espalier.reporting import write_report
from espalier.reporting.step_views import opened_artifact, step_page
from espalier.validation.report import rendered
from tests.factories import sample_run

PHONE_PX = 390
# HTMLViewer.tsx of Kubeflow's frontend: what follows srcdoc; the width is that of the panel's half
# of a page of 1400 px
FRAME = '<iframe sandbox="allow-scripts" style="width: 420px; height: 600px"></iframe>'
CUT_OFF = """() => [
  ...document.querySelectorAll('.flow li, .chart svg, .compare td, .facts td, p, b')]
  .filter(e => e.offsetParent !== null || e instanceof SVGElement)
  .map(e => [e.textContent.slice(0, 40), e.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth || box.left < 0))
  .map(([text]) => text)"""
HIDDEN = """() => [...document.querySelectorAll('h1, h2, p, li, td, b, code')]
  .filter(e => e.textContent.trim() && e.checkVisibility() && !e.closest('details'))
  .map(e => [e.textContent.trim().slice(0, 40), e.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth || box.left < 0))
  .map(([text]) => text)"""
WITHIN = """all => all.flatMap(one => [...one.querySelectorAll('td, b, code')])
  .map(e => e.textContent.trim().slice(0, 40))"""
OVERLAPS = """() => [...document.querySelectorAll('.flow li, .flow g')].flatMap(stage => {
  const range = document.createRange(), found = [];
  const walker = document.createTreeWalker(stage, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    if (!node.textContent.trim()) continue;
    range.selectNodeContents(node);
    found.push([node.textContent, range.getBoundingClientRect()]);
  }
  return found.flatMap(([a, p], i) => found.slice(i + 1)
    .filter(([, q]) => p.left < q.right && q.left < p.right
                       && p.top + 2 < q.bottom - 2 && q.top + 2 < p.bottom - 2)
    .map(([b]) => a + ' over ' + b));
})"""


def test_no_label_of_the_report_is_covered_or_cut_off(browser, tmp_path):
    report = write_report(sample_run.make_run(tmp_path / "sample"))
    for width_px in (PHONE_PX, 760, 1200):
        page = browser.new_page(viewport={"width": width_px, "height": 900})
        page.goto(report.as_uri())
        assert page.evaluate(OVERLAPS) == []
        if width_px == PHONE_PX:
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
            assert page.evaluate(CUT_OFF) == []


@pytest.fixture
def panel(browser, tmp_path):
    """Shows the page of a stage; gives its frame, and what the browser's console said."""

    def shown(stage, fill):
        sample_run.publish(tmp_path, stage, stage, fill)
        profile = Profile(name="mine").model_dump(mode="json")
        content = step_page(stage, opened_artifact(tmp_path / stage, profile))
        page, said = browser.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.set_content(FRAME)
        page.locator("iframe").evaluate("(frame, html) => frame.srcdoc = html", content)
        page.frame_locator("iframe").locator("h1").wait_for()
        return page.frames[-1], said

    return shown


def judged(*, success):
    def fill(path):
        report = sample_run.verdict(success=success)
        suite = report["suites"]["tasks"]
        suite["dropped_rows"] = []
        suite["expectations"][0]["arguments"] = {"column": "in_evidence"}
        (path / "validation.html").write_text(rendered(report))
        return {}

    return fill


@pytest.mark.parametrize(
    ("stage", "fill"),
    [
        ("validate", judged(success=True)),
        ("validate", judged(success=False)),
        ("warm_start", sample_run.warm_start),
        ("train", sample_run.train),
    ],
    ids=["accepted", "refused", "warm_start", "train"],
)
def test_a_page_fits_the_panel(panel, stage, fill):
    frame, said = panel(stage, fill)
    assert frame.evaluate(HIDDEN) == []
    assert said == [], "the sandbox refused something"
    if stage == "train":
        curve = frame.locator("svg").first.bounding_box()
        assert curve["width"] > 300
        assert curve["height"] > 100


def test_only_tables_are_wider_than_the_panel(panel):
    """They can be moved by themselves, under the shadow at their right."""
    frame, _ = panel("evaluate", sample_run.evaluate)
    assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    hidden = frame.evaluate(HIDDEN)
    assert set(hidden) <= set(frame.locator(".scroll").evaluate_all(WITHIN))
