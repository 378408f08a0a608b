"""Pages of steps in Kubeflow's UI: what cannot be read off their HTML."""

from __future__ import annotations

import pytest

from espalier.config import Profile
from espalier.reporting.step_views import opened_artifact, step_page
from espalier.validation.report import rendered
from tests.factories import sample_run

# HTMLViewer.tsx of Kubeflow's frontend: what follows srcdoc; the width is that of the panel's half
# of a page of 1400 px
FRAME = '<iframe sandbox="allow-scripts" style="width: 420px; height: 600px"></iframe>'
HIDDEN = """() => [...document.querySelectorAll('h1, h2, p, li, td, b, code')]
  .filter(e => e.textContent.trim() && e.checkVisibility() && !e.closest('details'))
  .map(e => [e.textContent.trim().slice(0, 40), e.getBoundingClientRect()])
  .filter(([, box]) => box.width && (box.right > innerWidth || box.left < 0))
  .map(([text]) => text)"""
WITHIN = """all => all.flatMap(one => [...one.querySelectorAll('td, b, code')])
  .map(e => e.textContent.trim().slice(0, 40))"""


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
