"""Every route of the viewer, over a run of three steps."""

import json

import pytest

from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from tests.factories.viewed_run import (
    HOSTILE,
    NOW,
    Viewer,
    attempt,
    notice_record,
    write_run,
    write_stream,
)


def run_of_one_step(folder, attempts):
    """The viewer of a run with these attempts."""
    streams = write_run(folder / "run", steps=0)
    records = [
        episode_record(one, EpisodePlace(1, number, NOW)) for number, one in enumerate(attempts)
    ]
    write_stream(streams, EPISODES, records)
    return Viewer([folder / "run"], folder)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("viewed")
    write_run(folder / "runs" / "demo")
    made = Viewer([folder / "runs"], folder)
    yield made
    made.catalog.close()


def test_runs_are_found_below_a_folder_and_by_words(viewer):
    (run,) = viewer.get("runs")["runs"]
    assert (run["id"], run["family"], run["model"]) == ("demo", "search_qa", "SmolLM2")
    assert (run["step"], run["steps"], run["notices"]["warning"]) == (3, 9, 1)
    assert viewer.get("runs", q="SEARCH_qa")["total"] == 1
    assert viewer.get("runs", q="elsewhere") == {"total": 0, "offset": 0, "runs": []}


def test_a_run_lists_its_sources_and_stages(viewer):
    run = viewer.get("runs/demo")
    counts = {source["name"]: source["attempts"] for source in run["sources"]}
    assert counts == {"train": 24, "warm_start": 3, "trained": 3}
    assert [stage["name"] for stage in run["stages"]][-3:] == ["train", "evaluate", "register"]
    assert run["profile"]["training"]["steps"] == 9


def test_an_unchanged_run_is_answered_without_a_body(viewer):
    viewer.settle("runs/demo")
    first = viewer.ask("/api/runs/demo/live")
    again = viewer.ask("/api/runs/demo/live", headers={"if-none-match": first.headers["etag"]})
    assert first.json()["attempts"]["train"] == 24
    assert (again.status_code, again.content) == (304, b"")


def test_every_figure_has_its_definition_and_denominator(viewer):
    described = {one["name"]: one for one in viewer.get("figures", run="demo")["figures"]}
    assert described["pass_rate"]["scale"] == "share of trajectories"
    assert described["pass_rate"]["range"] == [0, 1]
    assert set(described) == {"reward", "pass_rate", "entropy", "step_s", "rollout_s", "update_s"}
    assert len(viewer.get("figures")["figures"]) > 60


def test_curves_keep_gaps_and_are_thinned(viewer):
    found = viewer.get("runs/demo/steps", names="reward,entropy,loss")
    assert found["series"]["reward"] == [0.1, 0.2, 0.3]
    assert found["series"]["entropy"] == found["series"]["loss"] == [None] * 3
    assert found["time"][0] == NOW + 10
    thinned = viewer.get("runs/demo/steps", points=2)
    assert (thinned["steps"], thinned["stride"], thinned["total"]) == ([1, 3], 2, 3)
    assert viewer.get("runs/demo/steps", **{"from": 2, "to": 2})["steps"] == [2]


def test_a_notice_has_its_step_and_key(viewer):
    (notice,) = viewer.get("runs/demo/notices", level="warning")["notices"]
    assert (notice["step"], notice["key"], notice["attempts"]) == (1, "a.b", [])
    assert viewer.get("runs/demo/notices", level="restart")["total"] == 0


def test_detectors_come_first_and_equal_lines_are_one(tmp_path):
    line = "warning: step {}: engine and trainer disagree by 0.0{} nats"
    records = [notice_record(step, "warning", line.format(step, step)) for step in (1, 2, 3)]
    records += [notice_record(2, "restart", "restart"), notice_record(2, "restart", "restart")]
    found = {"severity": "warning", "since_step": 1, "attempts": ["2/t0/1", "9/none/0"]}
    records += [notice_record(step, detector=name, message=name, **found)
                for step, name in ((2, "cause"), (3, "consequence"))]  # fmt: skip
    streams = write_run(tmp_path / "run")
    write_stream(streams, "notices", sorted(records, key=lambda record: record.step))
    viewer = Viewer([tmp_path / "run"], tmp_path)
    notices = viewer.get("runs/run/notices")["notices"]
    assert [(one["source"], one["detected"], one["step"], one["since"], one["count"])
            for one in notices] == [
        ("cause", True, 2, 1, 1), ("consequence", True, 3, 1, 1), ("log", False, 3, 1, 3),
        ("log", False, 2, None, 1), ("log", False, 2, None, 1), ("log", False, 1, None, 1),
    ]  # fmt: skip
    assert notices[0]["names"] == ["\u2717 t0 #1"], "an attempt that is gone is left out"
    (run,) = viewer.get("runs")["runs"]
    assert run["notices"]["warning"] == 4, "two of detectors, the line of thrice, and another"
    viewer.catalog.close()


def test_timeline_divides_a_step_by_what_was_measured(viewer):
    found = viewer.get("runs/demo/timeline", **{"from": 3})
    kinds = [(span["kind"], span["end"] - span["start"]) for span in found["spans"]]
    assert kinds == [("sampling", 2.0), ("update", 1.5), ("other", 0.5)]
    assert found["steps"] == [{"step": 3, "start": NOW + 26, "end": NOW + 30}]


def test_attempts_are_filtered_sorted_and_paged(viewer):
    found = viewer.get("runs/demo/attempts", source="train", step=2, right="true")
    assert found["total"] == 4
    assert {row["step"] for row in found["attempts"]} == {2}
    page = viewer.get("runs/demo/attempts", source="train", offset=20, limit=3)
    assert (page["total"], len(page["attempts"])) == (24, 3)
    rewards = viewer.get("runs/demo/attempts", source="train", sort="-reward")["attempts"]
    assert [row["reward"] for row in rewards] == sorted(
        (r["reward"] for r in rewards), reverse=True
    )
    assert viewer.get("runs/demo/attempts", source="train", tool="search")["total"] == 24
    assert viewer.get("runs/demo/attempts", source="train", tool="none")["total"] == 0
    assert viewer.get("runs/demo/attempts", source="train", group="2/t1")["total"] == 4


def test_a_histogram_counts_each_attempt_once(viewer):
    found = viewer.get("runs/demo/histogram", source="train", of="reward", bins=4)
    assert (sum(found["right"]), sum(found["wrong"])) == (12, 12)
    assert len(found["edges"]) == 5
    flat = viewer.get("runs/demo/histogram", source="train", of="turns", bins=4)
    assert flat == {"of": "turns", "edges": [2, 2], "right": [12], "wrong": [12]}


def test_groups_have_their_attempts_and_gold(viewer):
    found = viewer.get("runs/demo/groups", source="train", step=1, kind="mixed")
    assert found["total"] == 2
    group = found["groups"][0]
    assert (group["size"], group["right"], group["gold"]) == (4, 2, ["france"])
    assert [row["sample"] for row in group["attempts"]] == [0, 1, 2, 3]
    assert viewer.get("runs/demo/groups", source="train", kind="all_right")["total"] == 0


def test_attempts_of_a_group_part_at_a_token(viewer):
    found = viewer.get("runs/demo/groups/parting", source="train", group="1/t0")
    # their fifth token tells them apart, and is the second that they sampled
    assert (found["first"], found["common"], found["parts"]) == ([4, 4, 4, 4], 1, 4)
    # of their second message, all have the thought and the call up to its number
    assert (found["message"], found["character"]) == (1, len('country\nsearch {"query":"lyon '))
    assert found["same_as"] == [None] * 4


def test_attempts_with_equal_messages_are_told(tmp_path):
    viewer = run_of_one_step(
        tmp_path, [attempt("t0", 0), attempt("t0", 1, right=False), attempt("t0", 0)]
    )
    found = viewer.get("runs/run/groups/parting", source="train", group="1/t0")
    assert (found["message"], found["same_as"]) == (1, [None, None, "0"])
    viewer.catalog.close()


def test_attempts_that_are_all_alike_part_nowhere(tmp_path):
    viewer = run_of_one_step(tmp_path, [attempt("t0", 0), attempt("t0", 0)])
    found = viewer.get("runs/run/groups/parting", source="train", group="1/t0")
    assert (found["message"], found["character"]) == (None, None)
    assert found["same_as"] == [None, "0"]
    viewer.catalog.close()


def first_attempt(viewer, source="train"):
    return viewer.get("runs/demo/attempts", source=source, limit=1)["attempts"][0]["id"]


def test_an_attempt_has_messages_evidence_and_neighbours(viewer):
    name = first_attempt(viewer)
    found = viewer.get(f"runs/demo/attempts/{name}")
    assert [one["role"] for one in found["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [one["turn"] for one in found["messages"]] == [None, 0, 0, 1]
    assert found["results"][0]["message"] == 2
    outcome = next(one for one in found["evidence"] if one["term"] == "outcome")
    assert (outcome["gold"], outcome["verifier"]) == (["france"], "exact_match")
    assert found["previous"] is None
    following = viewer.get(f"runs/demo/attempts/{found['next']}")
    assert following["previous"] == name
    assert len(found["siblings"]) == 4
    assert found["lineage"]["trained_in"] == [1]
    assert viewer.get(f"runs/demo/attempts/{name}/messages/2")["content"] == "country: france"
    assert viewer.refusal(f"/api/runs/demo/attempts/{name}/messages/9")[0] == 404


def test_an_attempts_times_are_those_that_were_measured(viewer):
    found = viewer.get(f"runs/demo/attempts/{first_attempt(viewer)}")
    assert (found["has_entropy"], found["has_trainer"]) == (True, True)
    assert found["spans"][2] == {"kind": "sampling", "start": 0.5, "end": 2.0, "turn": 0}
    times = [(one["start"], one["seconds"]) for one in found["messages"]]
    assert times == [(None, None), (0.5, 1.5), (2.25, 0.75), (3.0, 1.0)]


def test_values_that_nothing_measured_are_missing(viewer):
    found = viewer.get("runs/demo/groups", source="train", step=1)
    untrained = next(one["attempts"][0]["id"] for one in found["groups"] if one["task"] == "t1")
    tokens = viewer.get(f"runs/demo/attempts/{untrained}/tokens")
    assert tokens["entropy"] is tokens["trainer_logprob"] is tokens["advantage"] is None


def test_masked_tokens_have_no_value(viewer):
    found = viewer.get(f"runs/demo/attempts/{first_attempt(viewer)}/tokens")
    assert found["sampled"] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    assert found["logprob"][:5] == [None, None, None, -0.5, -0.25]
    assert found["trainer_logprob"][3] == -0.5
    assert found["entropy"] == [None] * 3 + [0.75] * 3 + [None] * 3 + [0.75] * 2 + [None]
    assert found["turn"][2:10] == [None, 0, 0, 0, 0, 0, 0, 1]
    part = viewer.get(f"runs/demo/attempts/{first_attempt(viewer)}/tokens", offset=3, limit=2)
    assert (part["ids"], part["total"]) == ([10, 11], 12)


def test_search_finds_words_phrases_and_beginnings(viewer):
    found = viewer.get("runs/demo/search", q="COUNTRY fra", role="tool", limit=2)
    assert (found["total"], found["indexed"]) == (30, 1.0)
    hit = found["hits"][0]
    assert (hit["message"], hit["role"]) == (2, "tool")
    start, end = hit["marks"][0]
    assert hit["snippet"][start:end] == "country"
    assert viewer.get("runs/demo/search", q='"france country"')["total"] == 0
    assert viewer.get("runs/demo/search", q="spain", source="trained")["total"] == 1
    assert viewer.get("runs/demo/search", q="NOT OR NEAR( * ^")["total"] == 0


def test_failures_are_grouped_by_cause(viewer):
    found = viewer.get("runs/demo/failures", source="train")
    (cause,) = found["causes"]
    assert (cause["cause"], cause["attempts"]) == ("wrong_answer", 12)
    assert cause["by_step"] == [[1, 4], [2, 4], [3, 4]]
    assert len(cause["examples"]) == 3


def test_sides_are_compared_by_task(viewer):
    viewer.settle("runs/demo")
    found = viewer.get("compare", side=["demo:warm_start", "demo:trained"], sort="better")
    assert [round(side["right"], 3) for side in found["sides"]] == [0.333, 0.667]
    (difference,) = found["differences"]
    assert (difference["better"], difference["same"], difference["tasks"]) == (1, 2, 3)
    assert found["pairs"][0]["task"] == "h1"
    steps = viewer.get("compare", side=["demo:train:1", "demo:train:2-3"])
    assert [side["attempts"] for side in steps["sides"]] == [8, 16]


def test_policies_are_compared_by_their_greedy_answers(tmp_path):
    write_run(tmp_path / "run", steps=0)
    for policy in ("warm_start", "trained"):
        sampled = [
            episode_record(attempt("h0", number, right=False), EpisodePlace(0, number, NOW))
            for number in range(1, 5)
        ]
        write_stream(tmp_path / "run" / "evaluation" / "streams" / policy, EPISODES, sampled)
    viewer = Viewer([tmp_path / "run"], tmp_path)
    found = viewer.get("compare", side=["run:warm_start", "run:trained"])
    assert [side["attempts"] for side in found["sides"]] == [3, 3]
    assert [round(side["right"], 3) for side in found["sides"]] == [0.333, 0.667]
    assert viewer.get("runs/run/attempts", source="trained")["total"] == 7
    viewer.catalog.close()


def test_a_task_leads_to_the_steps_that_trained_on_it(viewer):
    found = viewer.get("runs/demo/tasks/t0")
    assert (found["gold"], found["split"]) == (["france"], "train")
    assert [(one["step"], one["trained"]) for one in found["steps"]] == [
        (1, True), (2, True), (3, True),
    ]  # fmt: skip
    assert viewer.refusal("/api/runs/demo/tasks/none") == (404, "no_task")


def test_a_task_without_a_file_has_its_question(tmp_path):
    viewer = run_of_one_step(tmp_path, [attempt("lost", 0)])
    found = viewer.get("runs/run/tasks/lost")
    assert (found["question"], found["gold"]) == ("what is asked by lost", None)
    viewer.catalog.close()


def test_labels_are_kept_outside_of_the_run_and_become_rows(viewer):
    good, bad = [
        row["id"]
        for row in viewer.get("runs/demo/attempts", source="train", group="1/t0")["attempts"][:2]
    ]
    before = set(viewer.catalog.get("demo").path.rglob("*"))
    for name, label in ((good, "good"), (bad, "bad")):
        answer = viewer.ask(f"/api/labels/demo/{name}", "PUT", json={"label": label, "note": "n"})
        assert answer.json()["label"] == label
    assert viewer.get("labels", run="demo")["total"] == 2
    assert viewer.get(f"runs/demo/attempts/{good}")["label"] == "good"
    rows = viewer.ask("/api/labels/export?form=preferences").text.splitlines()
    assert json.loads(rows[0])["chosen"][-1]["content"] == "france"
    assert json.loads(viewer.ask("/api/labels/export").text)["messages"][0]["role"] == "user"
    assert viewer.ask(f"/api/labels/demo/{good}", "DELETE").json() == {"deleted": True}
    assert viewer.get("labels", run="demo")["total"] == 1
    assert set(viewer.catalog.get("demo").path.rglob("*")) == before


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/runs/none", 404, "no_run"),
        ("/api/runs/..%2f..%2fetc", 404, "no_route"),
        ("/api/runs/demo/attempts", 400, "bad_parameter"),
        ("/api/runs/demo/attempts?source=train&limit=501", 400, "bad_parameter"),
        ("/api/runs/demo/attempts?source=train&step=-1", 400, "bad_parameter"),
        ("/api/runs/demo/attempts?source=train&min_reward=nan", 400, "bad_parameter"),
        ("/api/runs/demo/attempts?source=../..", 400, "bad_parameter"),
        ("/api/runs/demo/attempts/train-0-1", 404, "no_attempt"),
        ("/api/runs/demo/attempts/train-9-0", 404, "no_attempt"),
        ("/api/runs/demo/attempts/passwd", 404, "no_attempt"),
        ("/api/runs/demo/attempts/train-0-999999999999999", 404, "no_attempt"),
        ("/api/runs/demo/search", 400, "bad_parameter"),
        ("/api/compare?side=demo:train", 400, "bad_parameter"),
        ("/api/compare?side=demo:train&side=demo", 400, "bad_parameter"),
        ("/api/nothing", 404, "no_route"),
        ("/static/../app.py", 404, "no_route"),
        ("/static/%2e%2e/app.py", 404, "no_route"),
        ("/static//etc/passwd", 404, "no_route"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_words(viewer, path, status, code):
    answer = viewer.ask(path)
    assert answer.status_code == status
    if answer.headers["content-type"] == "application/json":
        assert answer.json()["error"]["code"] == code


def test_answers_allow_no_script_from_elsewhere(viewer):
    for path in ("/api/runs", "/api/runs/none", "/api/about"):
        headers = viewer.ask(path).headers
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_hostile_text_comes_as_text(tmp_path):
    write_run(tmp_path / "run", steps=1)
    streams = tmp_path / "run" / "evaluation" / "streams" / "untrained"
    one = attempt("h0", 0, text=HOSTILE, answer=HOSTILE)
    write_stream(streams, "episodes", [episode_record(one, EpisodePlace(0, 0, NOW))])
    viewer = Viewer([tmp_path / "run"], tmp_path)
    (row,) = viewer.get("runs/run/attempts", source="untrained")["attempts"]
    answer = viewer.ask(f"/api/runs/run/attempts/{row['id']}")
    assert answer.headers["content-type"] == "application/json"
    expected = HOSTILE.replace("\ud800", "?")
    assert answer.json()["messages"][2]["content"] == expected
    assert viewer.get("runs/run/search", q="alert")["hits"][0]["snippet"] in expected
    viewer.catalog.close()
