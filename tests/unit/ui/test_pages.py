"""The viewer's pages as files: what they hold, what they may never do, and their export."""

import json
import re

import pytest

from espalier.config import ServingConfig
from espalier.records import ArtifactError
from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from espalier_ui import export
from espalier_ui.app import STATIC, ViewerApp
from tests.factories.viewed_run import HOSTILE, Viewer, attempt, write_run, write_stream

MOST_LINES = 3500
OURS = sorted([*STATIC.glob("*.js"), *STATIC.glob("views/*.js")])
IMPORTED = re.compile(r"""from "(\.[^"]+)\"""")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """A run of two steps; the second one's attempts are hostile."""
    folder = tmp_path_factory.mktemp("pages")
    streams = write_run(folder / "run", steps=2)
    records = [
        episode_record(attempt("t0", number, text=HOSTILE), EpisodePlace(2, number, 9.0))
        for number in range(3)
    ]
    write_stream(streams, EPISODES, records)
    made = Viewer([folder / "run"], folder)
    made.catalog.get("run").index.follow(patience_s=60)
    yield made
    made.catalog.close()


@pytest.fixture(scope="module")
def app(viewer):
    return ViewerApp(viewer.catalog, viewer.labels, ServingConfig(), token=None).app()


def recorded(html):
    """The answers in an exported file."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1])


def test_our_javascript_stays_small():
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in OURS) <= MOST_LINES


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_module_writes_no_markup_and_loads_nothing(path):
    source = path.read_text(encoding="utf-8")
    forbidden = r"innerHTML|outerHTML|insertAdjacent|dangerously|document\.write|\beval\b|https?://"
    assert re.findall(forbidden, source) == []
    assert [target for target in IMPORTED.findall(source)
            if not (path.parent / target).is_file()] == []  # fmt: skip
    assert max(map(len, source.splitlines())) <= 100


def test_the_page_has_no_inline_script_or_style():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|https?://", page) == []


def test_no_text_of_a_run_ends_an_exports_element(viewer, app):
    html = export.exported_run("run", export.asked_in_process(app))
    assert len(re.findall(r"<script|</script", html)) == 6
    answers = recorded(html)["answers"]
    assert answers["/api/runs/run"]["id"] == "run"
    kept = [name for name in answers if re.fullmatch(r"/api/runs/run/attempts/[^/?]+", name)]
    last = viewer.get("runs/run/attempts", source="train", step=2)["attempts"]
    assert {f"/api/runs/run/attempts/{row['id']}" for row in last} <= set(kept)
    assert {f"{name}/tokens?limit=2000&offset=0" for name in kept} <= set(answers)


def test_an_excerpt_has_no_more_attempts_than_asked(app):
    asked = export.asked_in_process(app)
    html = export.exported_run("run", asked, export.Excerpt(attempts=4))
    answers = recorded(html)["answers"]
    assert 0 < sum(bool(re.search(r"/attempts/[^/?]+$", name)) for name in answers) <= 4


def test_an_export_of_no_run_is_refused(app, tmp_path):
    with pytest.raises(ArtifactError, match="away"):
        export.write_export(tmp_path / "a.html", app, "away")
    assert list(tmp_path.iterdir()) == []
