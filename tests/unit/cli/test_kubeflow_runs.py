import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.cluster import kubeflow as kubeflow_module
from espalier.cluster import kubeflow_runs
from espalier.cluster.kubeflow_runs import parsed_run
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
    """A run of these steps, one after the other; a name that ends in "!" fails with 3."""
    kubeflow.kept["/experiments"] = [{"experiment_id": "e", "display_name": "espalier"}]
    run = {
        "run_id": f"5b0c7a3e-2d1f-4a57-9a3b-{len(kubeflow.runs):012}",
        "display_name": name,
        "experiment_id": "e",
        "created_at": "2026-03-04T05:06:07Z",
        "runtime_config": {"parameters": {"profile": "smoke", "seed": 7}},
    }
    kubeflow._start(run)
    kubeflow.runs.append(run)
    names = [step.rstrip("!") for step in steps]
    made = {
        name: Step(name, names[:number][-1:], 3 if steps[number].endswith("!") else 0, 0)
        for number, name in enumerate(names)
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
    ids = [finished(kubeflow, "a", name=name) for name in ("one", "two", "three", "four")]
    kubeflow.runs[3]["storage_state"] = "ARCHIVED"
    lines = done("runs", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["name", "three", "two", "one"]
    listed = json.loads(done("runs", "list", "--limit", "2", "--json"))
    assert [(one["name"], one["run_id"]) for one in listed] == [("three", ids[2]), ("two", ids[1])]
    assert listed[0]["state"] == "SUCCEEDED"
    assert listed[0]["seconds"] == 10


def test_a_server_without_runs_lists_none(kubeflow):
    assert done("runs", "list") == ""
    assert done("runs", "list", "--json") == "[]\n"


def test_a_run_is_shown_with_its_steps_alone(kubeflow):
    run_id = finished(kubeflow, "ingest", "train!", "evaluate")
    shown = done("runs", "show", "r1")
    assert run_id in shown
    assert "profile  smoke" in shown
    steps = [line.split() for line in shown.splitlines()[-3:]]
    assert steps == [
        ["ingest", "SUCCEEDED", "5", "s"],
        ["train", "FAILED", "5", "s", "main:", "Error", "(exit", "code", "1)"],
        ["evaluate", "OMITTED"],
    ]
    assert "driver" not in shown
    assert "executor" not in shown


def test_a_run_is_shown_as_json(kubeflow):
    finished(kubeflow, "ingest", "train!")
    shown = json.loads(done("runs", "show", "r1", "--json"))
    assert shown["parameters"] == {"profile": "smoke", "seed": 7}
    assert shown["url"] is None
    train = shown["steps"][1]
    assert (train["state"], train["attempts"]) == ("FAILED", 1)
    assert train["pod"].startswith("data-to-model-x7-retry-system-container-impl-")


def test_a_running_run_shows_what_it_reached(kubeflow):
    submitted(kubeflow, "ingest", "train")
    kubeflow.runs_steps = False
    assert done("runs", "show", "r1").splitlines()[1].startswith("PENDING")
    for _ in range(2):
        kubeflow.tick(kubeflow.runs[0])
    lines = done("runs", "show", "r1").splitlines()
    assert lines[1].startswith("RUNNING, created")
    assert [line.split() for line in lines[-2:]] == [
        ["ingest", "SUCCEEDED", "5", "s"], ["train", "RUNNING"],
    ]  # fmt: skip


def test_a_pod_that_waits_says_why(kubeflow):
    submitted(kubeflow, "train")
    kubeflow.runs_steps = False
    step = workflow_of(kubeflow).steps["train"]
    kubeflow.tick(kubeflow.runs[0])
    step.phase, step.message = "Pending", "Unschedulable: 0/3 nodes are available"
    assert "PENDING" in done("runs", "show", "r1")
    assert "Unschedulable" in done("runs", "show", "r1")


def test_a_step_whose_driver_failed_has_failed(kubeflow):
    submitted(kubeflow, "ingest", "train")
    workflow_of(kubeflow).steps["train"].fails_in_driver = True
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 1
    shown = result.stdout.splitlines()[-1].split()
    assert shown[:2] == ["train", "FAILED"]
    assert "step train: main: Error (exit code 1)" in result.stderr


def test_a_run_is_followed_with_a_line_for_every_change(kubeflow):
    submitted(kubeflow, "ingest", "train")
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stderr.splitlines()]
    assert [line[1:] for line in lines[:-1]] == [
        ["ingest", "started"],
        ["ingest", "succeeded", "after", "5", "s"],
        ["train", "started"],
        ["train", "succeeded", "after", "5", "s"],
    ]
    assert lines[-1][:2] == ["r1", "succeeded"]


def failed_pod(kubeflow):
    workflow = workflow_of(kubeflow)
    return workflow.pod(workflow.steps["train"])


def test_a_failure_is_followed_by_the_end_of_its_log(kubeflow):
    submitted(kubeflow, "train!")
    workflow_of(kubeflow).steps["train"].attempts = 3
    log = "\n".join(f"line {number}" for number in range(100))
    kubeflow.logs[failed_pod(kubeflow)] = f"{log}\nerror: no space left\n"
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert "step train, 3 attempts: main: Error (exit code 1)" in lines
    assert lines[-1] == "  error: no space left"
    assert lines[-30] == "  line 71"
    assert "  line 70" not in lines


def test_a_log_that_is_gone_is_said(kubeflow):
    submitted(kubeflow, "train!")
    result = espalier("runs", "show", "r1", "--follow")
    assert failed_pod(kubeflow) in result.stderr


def test_a_log_is_read_through_the_ui_server_too(kubeflow, monkeypatch):
    monkeypatch.setenv(kubeflow_module.ENDPOINT_VARIABLE, kubeflow.ui)
    submitted(kubeflow, "train!")
    kubeflow.logs[failed_pod(kubeflow)] = "error: no space left"
    result = espalier("runs", "show", "r1", "--follow")
    lines = result.stderr.splitlines()
    assert "  error: no space left" in lines
    assert lines[-1].startswith(f"{kubeflow.ui}/#/runs/details/")


def test_waiting_survives_a_server_that_is_away(kubeflow):
    submitted(kubeflow, "train")
    kubeflow.faults += [("GET", "/runs/5b0c", "pass"), *[("GET", "/runs/5b0c", 503)] * 9]
    result = espalier("runs", "show", kubeflow.runs[0]["run_id"], "--follow")
    assert result.exit_code == 0
    assert result.stderr.count("waiting for the server") == 1


def test_waiting_ends_where_the_server_refuses(kubeflow):
    run_id = submitted(kubeflow, "train")
    kubeflow.faults += [("GET", "/runs/5b0c", "pass"), ("GET", "/runs/5b0c", 403)]
    message = refused("runs", "show", run_id, "--follow", "--set", "seed=3")
    assert "refuses the token" in message
    assert f"espalier runs show {run_id} --follow --set seed=3" in message


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
    reads = kubeflow.requests
    seen = []

    def sleep(_):
        seen.append(len(reads))
        kubeflow.tick(kubeflow.runs[0])

    with kubeflow_module.KubeflowApi(config(), variables(kubeflow)) as api:
        run = kubeflow_runs.follow(api, run_id, lambda _: None, pytest.fail, sleep)
    assert [step.state for step in run.steps] == ["SUCCEEDED"]
    assert len(seen) == 1


def config():
    from espalier.config import KubeflowConfig

    return KubeflowConfig()


def variables(kubeflow):
    return {"KF_PIPELINES_ENDPOINT": kubeflow.endpoint, "KF_PIPELINES_TOKEN": TOKEN}


def test_a_run_that_is_gone_is_named(kubeflow):
    run_id = submitted(kubeflow, "train")
    kubeflow.runs.clear()
    assert "r1" in refused("runs", "show", "r1")
    assert f"no run {run_id}" in refused("runs", "stop", run_id)


def test_a_name_of_several_runs_needs_an_id(kubeflow):
    ids = [finished(kubeflow, "train!", name="smoke") for _ in range(12)]
    message = refused("runs", "retry", "smoke")
    assert "12 runs are named smoke; give an id, newest first:" in message
    assert f"{ids[11]} (FAILED)" in message
    assert "and 2 older ones" in message
    assert done("runs", "retry", ids[0]).strip() == ids[0]


def test_a_run_is_stopped_once(kubeflow):
    run_id = submitted(kubeflow, "train", "evaluate")
    kubeflow.tick(kubeflow.runs[0])
    assert done("runs", "stop", "r1").strip() == run_id
    assert kubeflow.runs[0]["state"] == "CANCELING"
    result = espalier("runs", "show", "r1", "--follow")
    assert result.exit_code == 1
    assert "r1 was stopped after" in result.stderr
    assert "r1 (" in refused("runs", "stop", "r1")


def test_a_failed_run_goes_on_with_what_is_missing(kubeflow):
    run_id = finished(kubeflow, "ingest", "train!")
    before = json.loads(done("runs", "show", "r1", "--json"))["steps"][0]
    workflow_of(kubeflow).steps["train"].exit_code = 0
    assert done("runs", "retry", "r1").strip() == run_id
    result = espalier("runs", "show", "r1", "--follow", "--json")
    assert result.exit_code == 0
    steps = json.loads(result.stdout)["steps"]
    assert steps[0] == before
    assert [step["state"] for step in steps] == ["SUCCEEDED", "SUCCEEDED"]


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED", "PENDING"])
def test_only_a_failed_run_is_retried(kubeflow, state):
    submitted(kubeflow, "train")
    kubeflow.runs[0]["state"] = state
    assert state in refused("runs", "retry", "r1")
    assert kubeflow.sent("POST") == []


@pytest.mark.slow
def test_submit_waits_for_the_end(kubeflow):
    result = espalier("submit", "--profile", "smoke", "--wait")
    assert result.exit_code == 0
    (run,) = kubeflow.runs
    assert result.stdout.strip() == run["run_id"]
    assert "register              succeeded after 5 s" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("smoke succeeded after")


@pytest.mark.slow
def test_submit_that_waits_fails_with_its_run(kubeflow):
    kubeflow.plan = {"validate": {"exit_code": 2}}
    result = espalier("submit", "--profile", "smoke", "--wait", "--json")
    assert result.exit_code == 1
    ended = json.loads(result.stdout)
    assert (ended["state"], ended["run_id"]) == ("FAILED", kubeflow.runs[0]["run_id"])
    assert {step["name"]: step["message"] for step in ended["steps"]}["validate"] == (
        "main: Error (exit code 1)"
    )
    assert "step validate: main: Error (exit code 1)" in result.stderr


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
