import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster import kubeflow as kubeflow_module
from espalier.cluster import kubeflow_runs
from espalier.cluster.kubeflow_runs import parsed_run
from espalier.config import KubeflowConfig
from espalier.records import ClusterError
from tests.factories.kubeflow_commands import done, espalier, kubeflow_at_hand, refused
from tests.fakes.argo_workflow import Step, Workflow
from tests.fakes.kubeflow_stand_in import TOKEN


@pytest.fixture
def kubeflow(monkeypatch):
    monkeypatch.setattr(kubeflow_runs, "_CLOCK_S", 0.01)
    with kubeflow_at_hand(monkeypatch) as stand_in:
        yield stand_in


def submitted(kubeflow, *steps, name="r1"):
    """A run of these steps, one after the other; a name that ends in "!" fails with 3.

    The step "a/b" is b in the nested pipeline a.
    """
    kubeflow.kept["/experiments"] = [{"experiment_id": "e", "display_name": "espalier"}]
    run = {
        "run_id": f"5b0c7a3e-2d1f-4a57-9a3b-{len(kubeflow.runs):012}", "display_name": name,
        "experiment_id": "e", "created_at": "2026-03-04T05:06:07Z",
        "runtime_config": {"parameters": {"profile": "smoke", "seed": 7}},
    }  # fmt: skip
    kubeflow._start(run)
    kubeflow.runs.append(run)
    parts, names = zip(*(step.rstrip("!").rpartition("/")[::2] for step in steps), strict=True)
    made = {
        name: Step(name, names[:number][-1:], 3 if steps[number].endswith("!") else 0, 0, part)
        for number, (part, name) in enumerate(zip(parts, names, strict=True))
    }
    kubeflow.workflows[run["run_id"]] = Workflow("data-to-model-x7", made, 1772600767)
    return run["run_id"]


def finished(kubeflow, *steps, name="r1"):
    run_id = submitted(kubeflow, *steps, name=name)
    while kubeflow.runs[-1]["state"] not in ("SUCCEEDED", "FAILED"):
        kubeflow.tick(kubeflow.runs[-1])
    return run_id


def workflow_of(kubeflow):
    (workflow,) = kubeflow.workflows.values()
    return workflow


def test_runs_are_listed_newest_first_without_archived_ones(kubeflow):
    assert done("runs", "list", "--json") == "[]\n"
    ids = [finished(kubeflow, "a", name=name) for name in ("one", "two", "three", "four")]
    kubeflow.runs[3]["storage_state"] = "ARCHIVED"
    lines = done("runs", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["name", "three", "two", "one"]
    listed = json.loads(done("runs", "list", "--limit", "2", "--json"))
    assert [(one["name"], one["run_id"]) for one in listed] == [("three", ids[2]), ("two", ids[1])]
    assert (listed[0]["state"], listed[0]["seconds"]) == ("SUCCEEDED", 10)


def test_a_run_is_shown_with_its_steps_alone(kubeflow):
    run_id = finished(kubeflow, "ingest", "train!", "evaluate")
    shown = done("runs", "show", "r1")
    assert run_id in shown
    steps = [line.split()[:2] for line in shown.splitlines()[-3:]]
    assert steps == [["ingest", "SUCCEEDED"], ["train", "FAILED"], ["evaluate", "OMITTED"]]
    assert "driver" not in shown
    assert "executor" not in shown
    shown = json.loads(done("runs", "show", "r1", "--json"))
    assert shown["parameters"] == {"profile": "smoke", "seed": 7}
    train = shown["steps"][1]
    assert (train["state"], train["attempts"]) == ("FAILED", 1)
    assert train["pod"].startswith("data-to-model-x7-retry-system-container-impl-")


def test_nested_pipelines_are_shown_before_their_steps(kubeflow):
    finished(kubeflow, "data/ingest", "data/validate", "training/train!", "judgement/evaluate")
    workflow = workflow_of(kubeflow)
    kubeflow.logs[workflow.pod(workflow.steps["train"])] = "error: no space left\n"
    steps = json.loads(done("runs", "show", "r1", "--json"))["steps"]
    assert [(step["name"], step["state"]) for step in steps] == [
        ("data", "SUCCEEDED"), ("ingest", "SUCCEEDED"), ("validate", "SUCCEEDED"),
        ("training", "FAILED"), ("train", "FAILED"), ("judgement", "OMITTED"),
    ]  # fmt: skip
    assert [bool(step["attempts"]) for step in steps] == [False, True, True, False, True, False]
    result = espalier("runs", "show", "r1", "--follow")
    assert "step train: " in result.stderr
    assert "  error: no space left" in result.stderr.splitlines()


def test_a_running_run_shows_what_it_reached_and_waits_for(kubeflow):
    submitted(kubeflow, "ingest", "train")
    kubeflow.runs_steps = False
    assert "PENDING" in done("runs", "show", "r1")
    for _ in range(2):
        kubeflow.tick(kubeflow.runs[0])
    lines = done("runs", "show", "r1").splitlines()
    assert lines[1].startswith("RUNNING")
    steps = [line.split()[:2] for line in lines[-2:]]
    assert steps == [["ingest", "SUCCEEDED"], ["train", "RUNNING"]]
    step = workflow_of(kubeflow).steps["train"]
    step.phase, step.message = "Pending", "Unschedulable: 0/3 nodes are available"
    assert "Unschedulable" in done("runs", "show", "r1")


def test_a_run_is_followed_with_a_line_for_every_change(kubeflow):
    submitted(kubeflow, "ingest", "train")
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stderr.splitlines()]
    assert [line[1:3] for line in lines[:-1]] == [
        [step, change] for step in ("ingest", "train") for change in ("started", "succeeded")
    ]
    assert lines[-1][:2] == ["r1", "succeeded"]


@pytest.mark.parametrize("by_ui", [False, True])
def test_a_failure_is_followed_by_the_end_of_its_log(kubeflow, monkeypatch, by_ui):
    if by_ui:  # logs are read through the UI server too
        monkeypatch.setenv(kubeflow_module.ENDPOINT_VARIABLE, kubeflow.ui)
    submitted(kubeflow, "train!")
    workflow_of(kubeflow).steps["train"].attempts = 3
    workflow = workflow_of(kubeflow)
    log = "\n".join(f"line {number}" for number in range(100))
    kubeflow.logs[workflow.pod(workflow.steps["train"])] = f"{log}\nerror: no space left\n"
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert any("step train, 3 attempts: " in line for line in lines)
    assert "  error: no space left" in lines
    assert ("  line 71" in lines, "  line 70" in lines) == (True, False)
    assert lines[-1].startswith(f"{kubeflow.ui}/#/runs/details/") is by_ui


def test_waiting_survives_a_server_that_is_away_until_it_refuses(kubeflow):
    run_id = submitted(kubeflow, "train")
    kubeflow.faults += [("GET", "/runs/5b0c", "pass"), *[("GET", "/runs/5b0c", 503)] * 9]
    kubeflow.faults += [("GET", "/runs/5b0c", 403)]
    result = espalier("runs", "show", run_id, "--follow", "--set", "seed=3")
    assert result.exit_code == 1
    assert result.stderr.count("waiting for the server") == 1
    assert "refuses the token" in result.stderr
    assert f"espalier runs show {run_id} --follow --set seed=3" in result.stderr


def test_ctrl_c_leaves_the_run_going(kubeflow, monkeypatch):
    run_id = submitted(kubeflow, "train")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(kubeflow_runs, "_report_changes", interrupted)
    monkeypatch.setattr("time.sleep", interrupted)
    result = espalier("runs", "show", run_id, "--follow", "--profile", "smoke")
    assert result.exit_code == 130
    assert "the run continues" in result.stderr
    assert f"espalier runs show {run_id} --follow --profile smoke" in result.stderr
    assert kubeflow.sent("POST") == []


def test_states_that_arrive_after_the_end_are_waited_for(kubeflow):
    """The server stores the run's end before that of its steps."""
    run_id = submitted(kubeflow, "train")
    kubeflow.runs_steps = False
    kubeflow.tick(kubeflow.runs[0])
    kubeflow.runs[0]["state"] = "SUCCEEDED"
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        kubeflow.tick(kubeflow.runs[0])

    variables = {"KF_PIPELINES_ENDPOINT": kubeflow.endpoint, "KF_PIPELINES_TOKEN": TOKEN}
    with kubeflow_module.KubeflowApi(KubeflowConfig(), variables) as api:
        run = kubeflow_runs.follow(api, run_id, lambda _: None, pytest.fail, sleep)
    assert [step.state for step in run.steps] == ["SUCCEEDED"]
    assert len(pauses) == 1


def test_a_name_of_several_or_no_runs_is_refused(kubeflow):
    ids = [finished(kubeflow, "train!", name="smoke") for _ in range(12)]
    message = refused("runs", "retry", "smoke")
    assert "12 runs" in message
    assert ids[11] in message
    assert ids[0] not in message, "the newest ten are named"
    assert done("runs", "retry", ids[0]).strip() == ids[0]
    kubeflow.runs.clear()
    assert "smoke" in refused("runs", "show", "smoke")
    assert ids[0] in refused("runs", "stop", ids[0])


def test_a_stopped_run_is_stopped_once_and_can_be_retried(kubeflow):
    run_id = submitted(kubeflow, "train", "evaluate")
    kubeflow.tick(kubeflow.runs[0])
    assert done("runs", "stop", "r1").strip() == run_id
    assert kubeflow.runs[0]["state"] == "CANCELING"
    result = espalier("runs", "show", "r1", "--follow")
    assert (result.exit_code, "r1 was stopped" in result.stderr) == (1, True)
    assert "r1 (" in refused("runs", "stop", "r1")
    assert done("runs", "retry", "r1").strip() == run_id
    assert espalier("runs", "show", "r1", "--follow").exit_code == 0


@pytest.mark.slow
def test_submit_that_waits_ends_as_its_run(kubeflow):
    result = espalier("submit", "--profile", "smoke", "--wait")
    assert (result.exit_code, result.stdout.strip()) == (0, kubeflow.runs[0]["run_id"])
    assert "smoke succeeded" in result.stderr
    kubeflow.plan = {"validate": {"exit_code": 2}}
    result = espalier("submit", "--profile", "smoke", "--wait", "--json")
    assert result.exit_code == 1
    ended = json.loads(result.stdout)
    assert (ended["state"], ended["run_id"]) == ("FAILED", kubeflow.runs[-1]["run_id"])
    assert {step["name"]: step["message"] for step in ended["steps"]}["validate"]
    assert "step validate: " in result.stderr


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
TASKS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "display_name": st.sampled_from(["root", "a", "a-driver", "-driver", "(0)", ""]),
            "state": st.sampled_from(["FAILED", "RUNNING", "", "NEW"]),
            "start_time": st.sampled_from(["0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 3]),
            "child_tasks": st.lists(st.fixed_dictionaries({"pod_name": st.text(max_size=3)})),
        },
    )
)
FIELDS = st.sampled_from(["run_id", "state", "created_at", "run_details", "state_history"])


@given(
    st.fixed_dictionaries(
        {"run_id": st.just("r"), "run_details": st.fixed_dictionaries({"task_details": TASKS})}
    )
    | st.dictionaries(FIELDS, JSON)
    | JSON
)
def test_whatever_the_server_sends_is_read_or_refused_in_words(found):
    with suppress(ClusterError):
        run = parsed_run(found)
        assert run.id
        assert run.failed_step is None or run.failed_step.state == "FAILED"
