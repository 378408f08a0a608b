"""The report as a browser lays it out: what cannot be read off its HTML."""

from __future__ import annotations

import pytest

from espalier.reporting import write_report
from tests.factories.sample_run import make_run

PHONE_PX, DESKTOP_PX = 390, 1200
CUT_OFF = """() => [
  ...document.querySelectorAll('.flow li, .chart svg, .compare td, .facts td, p, b')]
  .filter(e => e.offsetParent !== null || e instanceof SVGElement)
  .map(e => [e.tagName, e.textContent.slice(0, 40), e.getBoundingClientRect()])
  .filter(([, , box]) => box.width && (box.right > innerWidth || box.left < 0))
  .map(([tag, text]) => tag + ': ' + text)"""
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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "sample"))


def page_of(browser, report, width_px):
    page = browser.new_page(viewport={"width": width_px, "height": 900})
    page.goto(report.as_uri())
    return page


def test_nothing_is_cut_off_on_a_phone(browser, report):
    page = page_of(browser, report, PHONE_PX)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
    assert page.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("width_px", [PHONE_PX, 760, DESKTOP_PX])
def test_no_label_of_the_flow_covers_another(browser, report, width_px):
    assert page_of(browser, report, width_px).evaluate(OVERLAPS) == []
