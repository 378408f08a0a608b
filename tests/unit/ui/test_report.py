"""report.html: the viewer's file of a run, which the core finds by an entry point."""

import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import espalier_ui
from espalier.cli import command_line
from espalier.records import ArtifactError
from espalier.reporting import write_report
from espalier_ui import server
from tests.factories.sample_run import HOSTILE, make_run, write_json
from tests.factories.viewed_run import Viewer
from tests.unit.ui.test_pages import recorded

PROJECT = Path(espalier_ui.__file__).with_name("pyproject.toml")
OURS = "espalier.reports"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "sample")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The viewer's distribution as its pyproject.toml says, or without what writes reports."""

    def install(*, writes_reports):
        groups = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
        if not writes_reports:
            del groups[OURS]
        folder = tmp_path / "installed" / "espalier_agents_ui-9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Name: espalier-agents-ui\nVersion: 9\n")
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{name} = {where}" for name, where in points.items()))
        ]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(folder.parent)

    return install


def test_report_is_the_viewers_file_and_repeats_itself(run, installed):
    installed(writes_reports=True)
    path = write_report(run)
    html = path.read_text(encoding="utf-8")
    assert path == run / "report.html"
    assert write_report(run).read_text(encoding="utf-8") == html
    assert len(html) < 1_500_000
    for unwanted in (str(run.parent), HOSTILE, "<img", 'src="', "http://"):
        assert unwanted not in html.replace("http-equiv", ""), unwanted
    answers = recorded(html)["answers"]
    titles = [section["title"] for section in answers["/api/runs/sample/report"]["sections"]]
    assert {"Key figures", "Before and after", "Samples", "Provenance"} <= set(titles)
    assert answers["/api/runs/sample"]["path"] == "sample"


def test_a_stopped_run_has_a_report_too(tmp_path):
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "profile.json", {"name": "laptop"})
    server.write_report(tmp_path / "run", tmp_path / "report.html")
    assert "/api/runs/run/report" in recorded((tmp_path / "report.html").read_text())["answers"]


def test_a_damaged_artifact_leaves_no_report(run, tmp_path):
    damaged = shutil.copytree(run, tmp_path / "run")
    history = damaged / "trained_policy" / "history.parquet"
    history.write_bytes(history.read_bytes()[:100])
    with pytest.raises(ArtifactError, match=r"trained_policy/history\.parquet"):
        server.write_report(damaged, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_without_the_viewer_one_line_says_what_is_missing(run, tmp_path, installed):
    installed(writes_reports=False)
    copied = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("report.html"))
    done = CliRunner().invoke(command_line(), ["report", str(copied)])
    assert done.exit_code == 0, done.output
    assert "pip install espalier-agents-ui" in done.stderr
    assert (copied / "summary.json").is_file()
    assert not (copied / "report.html").exists()


def test_the_report_is_made_again_when_a_stage_has_published(tmp_path):
    run = make_run(tmp_path / "run", last_stage="ingest")
    viewer = Viewer([run], tmp_path)
    notes = {one["title"]: one["note"] for one in viewer.get("runs/run/report")["sections"]}
    assert notes["Synthesis"] == "not run: synthesize"
    made = make_run(tmp_path / "more", last_stage="synthesize")
    shutil.copytree(made / "synthetic", run / "synthetic")
    notes = {one["title"]: one["note"] for one in viewer.get("runs/run/report")["sections"]}
    assert notes["Synthesis"].startswith("train: 5600 of 6000 tasks")
    viewer.catalog.close()


@pytest.mark.parametrize(
    "content", ['{"curriculum": 7}', '{"agent_texts": {"memories": {}}}', "[]", "{"]
)
def test_a_hostile_profile_is_refused_in_words(run, tmp_path, content):
    spoiled = shutil.copytree(run, tmp_path / "run")
    (spoiled / "profile.json").write_text(content)
    viewer = Viewer([spoiled], tmp_path)
    assert viewer.refusal("/api/runs/run/report") == (500, "unreadable")
    viewer.catalog.close()


def test_a_link_out_of_the_run_is_not_followed(run, tmp_path):
    linked = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "secret.json").write_text('{"name": "secret"}')
    (linked / "profile.json").unlink()
    (linked / "profile.json").symlink_to(tmp_path / "secret.json")
    viewer = Viewer([linked], tmp_path)
    answer = viewer.ask("/api/runs/run/report")
    assert answer.status_code == 500
    assert "link out of the run" in answer.json()["error"]["message"]
    viewer.catalog.close()
