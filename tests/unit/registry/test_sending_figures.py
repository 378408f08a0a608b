"""What a tracker sends to MLflow, when, and what it does while the server is away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from espalier.records import RegistryError
from espalier.registry import MlflowTracker
from espalier.registry.tracker import RunHandle, send_unsent


class Server:
    """Keeps what MLflow's client is told, and is away on request."""

    def __init__(self):
        self.away_for_s = None
        self.batches, self.stored, self.ended = [], [], []
        self.tags, self.params = {}, {}
        self.of_run = {}
        self.now_s = 0.0

    def _answer(self):
        if self.away_for_s is not None:
            self.now_s += self.away_for_s
            raise OSError("connection refused")

    def get_run(self, run_id):
        return SimpleNamespace(data=SimpleNamespace(params=dict(self.params), tags=self.tags))

    def log_batch(self, run_id, metrics=(), params=()):
        self._answer()
        figures = [(m.key, m.value, m.step) for m in metrics]
        self.batches.append(figures or len(params))
        self.of_run.setdefault(run_id, []).extend(figures)
        self.params |= {param.key: param.value for param in params}

    def set_tag(self, run_id, key, value):
        self.tags[key] = value

    def set_terminated(self, run_id, status):
        self._answer()
        self.ended.append(status)

    def log_artifact(self, run_id, path):
        self.stored.append(("file", path))

    def log_artifacts(self, run_id, path, folder):
        self.stored.append(("folder", path, folder))


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def tracker(server):
    run = RunHandle(client=server, uri="http://mlflow", run_id="r", experiment_id="e")
    return MlflowTracker(run, clock=lambda: server.now_s)


def sent(server):
    return sum(len(batch) for batch in server.batches)


def test_figures_wait_five_seconds_from_the_last_sending(tracker, server):
    arrived = []
    for now_s in (0.0, 4.9, 5.0, 9.9, 10.0):
        server.now_s = now_s
        tracker.metrics({"loss": now_s}, step=1)
        arrived.append(sent(server))
    assert arrived == [1, 1, 3, 3, 5]


def test_a_figure_without_a_step_is_of_step_zero(tracker, server):
    tracker.metrics({"loss": 2.0, "em": 0.5})
    tracker.metrics({"loss": 1.0}, step=7)
    tracker.flush()
    figures = [figure for batch in server.batches for figure in batch]
    assert figures == [("loss", 2.0, 0), ("em", 0.5, 0), ("loss", 1.0, 7)]


def test_a_batch_is_small_enough_for_mlflow(tracker, server):
    tracker.metrics({f"figure{i}": 0.0 for i in range(450)})
    assert sent(server) == 450
    assert max(map(len, server.batches)) <= 1000
    assert len({key for batch in server.batches for key, _, _ in batch}) == 450


def test_settings_are_sent_a_hundred_at_once_and_cut(tracker, server):
    tracker.params({f"key{i}": i for i in range(249)} | {"prompt": "x" * 7000})
    assert server.batches == [100, 100, 50]
    assert server.params == {f"key{i}": str(i) for i in range(249)} | {"prompt": "x" * 6000}


def test_settings_that_are_known_are_not_sent_again(tracker, server):
    tracker.params({"a": {"b": 1, "c": {}}, "d": None})
    tracker.params({"a": {"b": 1}, "e": 2})
    assert server.params == {"a.b": "1", "a.c": "{}", "d": "None", "e": "2"}
    assert server.batches == [3, 1]
    assert server.tags == {}


def test_a_parent_keeps_its_first_setting_and_tags_the_later(tracker, server):
    tracker.params({"steps": 3, "seed": 0})
    tracker.params({"steps": 4, "seed": 0})
    assert server.params == {"steps": "3", "seed": "0"}
    assert server.tags == {"espalier.param.steps": "4"}


@pytest.mark.parametrize(("away_for_s", "pause_s"), [(0.5, 30.0), (4.0, 40.0)])
def test_a_server_that_is_away_is_asked_seldom(tracker, server, away_for_s, pause_s):
    """Half a minute after a quick failure; ten times as long as a slow one took."""
    server.away_for_s = away_for_s
    tracker.metrics({"loss": 1.0}, step=0)
    failed_at = server.now_s
    server.away_for_s = None
    for since in (pause_s - 0.1, pause_s):
        server.now_s = failed_at + since
        tracker.metrics({"loss": 1.0}, step=1)
        assert sent(server) == (0 if since < pause_s else 3)


def test_a_failed_run_that_cannot_be_ended_is_logged(tracker, server):
    server.away_for_s = 0.0
    tracker.finish("FAILED")
    with pytest.raises(RegistryError, match="refused"):
        tracker.finish()
    server.away_for_s = None
    tracker.finish()
    assert server.ended == ["FINISHED"]


def test_a_run_with_a_folder_keeps_what_is_unsent(server, tmp_path):
    run = RunHandle(
        client=server, uri="http://mlflow", run_id="r", experiment_id="e", unsent=tmp_path / "u"
    )
    tracker = MlflowTracker(run, clock=lambda: server.now_s)
    server.away_for_s = 0.0
    tracker.metrics({"loss": float("nan"), "em": 0.1}, step=3)
    assert (tmp_path / "u" / "r.json").exists()
    tracker.finish()
    assert server.ended == []
    server.away_for_s = None
    send_unsent(run)
    assert [(key, step) for key, _, step in server.batches[0]] == [("loss", 3), ("em", 3)]
    assert server.batches[0][1][1] == 0.1
    assert server.ended == ["FINISHED"]
    server.away_for_s, server.now_s = 0.0, 1000.0
    tracker.metrics({"em": 0.2}, step=4)
    server.away_for_s, server.now_s = None, 2000.0
    tracker.flush()
    assert not (tmp_path / "u" / "r.json").exists()


def stage_tracker(server, unsent=None):
    run = RunHandle(
        client=server, uri="http://mlflow", run_id="s", experiment_id="e",
        pipeline_run_id="p", stage="train", unsent=unsent,
    )  # fmt: skip
    return MlflowTracker(run, clock=lambda: server.now_s)


def test_curves_of_the_overview_are_on_the_pipelines_run_too(server):
    tracker = stage_tracker(server)
    tracker.metrics({"reward": 0.5, "turns_mean": 2.0, "entropy": 1.0}, step=3)
    tracker.metrics({"reward": 0.7})
    tracker.flush()
    assert server.of_run["s"] == [
        ("reward", 0.5, 3), ("turns_mean", 2.0, 3), ("entropy", 1.0, 3), ("reward", 0.7, 0),
    ]  # fmt: skip
    assert server.of_run["p"] == [("train/reward", 0.5, 3), ("train/entropy", 1.0, 3)]


def test_unsent_curves_reach_the_pipelines_run_later(server, tmp_path):
    tracker = stage_tracker(server, tmp_path / "u")
    server.away_for_s = 0.0
    tracker.metrics({"reward": 0.5}, step=3)
    tracker.finish()
    server.away_for_s = None
    send_unsent(tracker.run)
    assert server.of_run == {"s": [("reward", 0.5, 3)], "p": [("train/reward", 0.5, 3)]}
    assert server.ended == ["FINISHED"]
    assert list((tmp_path / "u").iterdir()) == []


def test_a_write_that_fails_keeps_the_figures_of_before(server, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    tracker = stage_tracker(server, tmp_path / "u")
    server.away_for_s = 0.0
    tracker.metrics({"reward": 0.5}, step=3)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "u").iterdir()}
    monkeypatch.setattr("espalier.registry.tracker.write_whole", full)
    server.now_s = 1000.0
    with pytest.raises(OSError, match="no space"):
        tracker.metrics({"reward": 0.7}, step=4)
    assert {path.name: path.read_bytes() for path in (tmp_path / "u").iterdir()} == kept
    assert len(kept) == 2


def test_notes_stand_below_the_description(tracker, server):
    tracker.describe("what it is")
    tracker.note("one")
    tracker.note("two")
    assert server.tags["mlflow.note.content"] == "what it is"
    tracker.finish()
    assert server.tags["mlflow.note.content"] == "what it is\n\none\n\ntwo"


def test_of_too_many_notes_the_last_are_kept(tracker, server):
    for number in range(1000):
        tracker.note(f"note {number}")
    tracker.finish()
    text = server.tags["mlflow.note.content"]
    assert text.endswith("note 999")
    assert 3900 < len(text) <= 4000


def test_a_folder_is_stored_under_its_own_name(tracker, server, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report.html").touch()
    tracker.artifact(tmp_path / "report")
    tracker.artifact(tmp_path / "report.html")
    assert server.stored == [
        ("folder", str(tmp_path / "report"), "report"),
        ("file", str(tmp_path / "report.html")),
    ]
