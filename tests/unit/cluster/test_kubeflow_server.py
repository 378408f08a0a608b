"""What a server of Kubeflow Pipelines does for this client: the stand-in, or a real one.

    ESPALIER_TEST_KUBEFLOW=http://localhost:8888 \
    ESPALIER_TEST_KUBEFLOW_IMAGE=registry.example/busybox:1 \
        python -m pytest tests/unit/cluster/test_kubeflow_server.py

The image has to have `sh`. A server for several users also needs ESPALIER_TEST_KUBEFLOW_NAMESPACE
and KF_PIPELINES_TOKEN. Everything is made in an experiment of its own and archived at the end.
"""

import os
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from kfp import compiler, dsl

from espalier.cluster import kubeflow_runs, schedules
from espalier.cluster.kubeflow import KubeflowApi, start_run
from espalier.cluster.schedules import When, times
from espalier.config import KubeflowConfig
from espalier.records import ClusterError
from tests.fakes.kubeflow_stand_in import TOKEN, kubeflow_stand_in

REAL = os.environ.get("ESPALIER_TEST_KUBEFLOW")
NAMESPACE = os.environ.get("ESPALIER_TEST_KUBEFLOW_NAMESPACE")
IMAGE = os.environ.get("ESPALIER_TEST_KUBEFLOW_IMAGE", "busybox:1")
CONTROLLER_S = 45  # resync every 30 s, and its queue
EVERY_DAY = "0 0 0 * * *"
AGES_AGO = "2020-01-01T00:00:00Z"

pytestmark = pytest.mark.slow  # compiles pipelines


@dsl.container_component
def passes():
    return dsl.ContainerSpec(IMAGE, ["sh", "-c"], ["echo this passes; exit 0"])


@dsl.container_component
def fails():
    return dsl.ContainerSpec(IMAGE, ["sh", "-c"], ["echo this fails; exit 3"])


@dsl.container_component
def sleeps():
    return dsl.ContainerSpec(IMAGE, ["sh", "-c"], ["sleep 600"])


def compile_to(*components):
    """The steps one after the other."""

    @dsl.pipeline(name="espalier-test")
    def steps(word: str = "nothing"):
        before = None
        for component in components:
            task = component()
            if before is not None:
                task.after(before)
            before = task

    def compile_(path: Path):
        compiler.Compiler().compile(steps, str(path))
        return {"word": "given"}

    return compile_


def now():
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def server():
    """api, pass_time(seconds), sleep(seconds), now(); stand_in, if it is that."""
    name = f"espalier-test-{uuid.uuid4().hex[:8]}"
    config = KubeflowConfig(namespace=NAMESPACE, experiment=name, pipeline=name)
    if REAL is not None:
        variables = {"KF_PIPELINES_ENDPOINT": REAL} | {
            key: value for key, value in os.environ.items() if key.startswith("KF_PIPELINES_TOKEN")
        }
        real = {"pass_time": time.sleep, "sleep": time.sleep, "now": now, "stand_in": None}
        with KubeflowApi(config, variables) as api:
            yield SimpleNamespace(api=api, **real)
            archive(api, name)
        return
    sleeps_left = iter(range(1000))  # a run that never ends is an error and not a hanging test
    with kubeflow_stand_in() as stand_in:
        variables = {"KF_PIPELINES_ENDPOINT": stand_in.endpoint, "KF_PIPELINES_TOKEN": TOKEN}
        with KubeflowApi(config, variables) as api:
            yield SimpleNamespace(
                api=api,
                pass_time=stand_in.pass_time,
                sleep=lambda _: next(sleeps_left),
                now=lambda: datetime.fromtimestamp(int(stand_in.now()), UTC),
                stand_in=stand_in,
            )
            archive(api, name)


def archive(api, name):
    listing = api.experiments.experiment_service_list_experiments
    for found in api.listed("list", "experiments", listing, namespace=api.config.namespace):
        if found["display_name"] == name:
            request = api.experiments.experiment_service_archive_experiment
            api.write("archive", request, found["experiment_id"])


@pytest.fixture
def schedule(server):
    """Makes one of a name of its own; it is deleted at the end."""
    made = []

    def make(cron, **when):
        name = f"schedule-{uuid.uuid4().hex[:6]}"
        given = times(When(cron, **when), "UTC", server.now())
        made.append(schedules.create(server.api, name, given, compile_to(passes)))
        return name, made[-1]

    yield make
    for one in schedules.schedules(server.api):
        if one.name.startswith("schedule-"):
            schedules.delete(server.api, one.id)


def ended(server, *components, name="r1"):
    run_id = start_run(server.api, name, compile_to(*components))
    reported = []
    run = kubeflow_runs.follow(server.api, run_id, reported.append, pytest.fail, server.sleep)
    return run, reported


def runs_of(api, schedule_id):
    listing = api.runs.run_service_list_runs
    found = api.listed("list", "runs", listing, namespace=api.config.namespace)
    return [run for run in found if run.get("recurring_run_id") == schedule_id]


def test_a_run_is_followed_step_by_step_to_its_end(server):
    run, reported = ended(server, passes, passes)
    assert run.state == "SUCCEEDED"
    assert run.seconds is not None
    assert run.parameters == {"word": "given"}
    assert [step.state for step in run.steps] == ["SUCCEEDED"] * 2
    assert [step.name for step in reported if step.ended] == [step.name for step in run.steps]


def test_a_failed_run_names_step_message_and_log(server):
    run, _ = ended(server, passes, fails, passes)
    assert run.state == "FAILED"
    run = kubeflow_runs.explained(server.api, run)
    assert [(step.name, step.state) for step in run.steps] == [
        ("passes", "SUCCEEDED"), ("fails", "FAILED"), ("passes-2", "OMITTED"),
    ]  # fmt: skip
    failed = run.failed_step
    assert failed.message == "main: Error (exit code 1)"
    assert failed.attempts >= 1
    if server.stand_in is not None:
        server.stand_in.logs[failed.pod] = LOG
    said = kubeflow_runs.log_end(server.api, run, failed, 5)
    assert "this fails" in said
    assert not any("launcher_v2" in line and line.startswith("I") for line in said), said


LOG = """\
this fails
I1123 19:02:03.889137      14 launcher_v2.go:867] Executing uploadOutputArtifacts attempt: 1
time=2026-11-23T19:02:04.416Z level=INFO msg="sub-process exited" argo=true error="exit status 1"
"""


def test_only_failed_runs_are_retried_and_only_running_ones_stopped(server):
    run, _ = ended(server, passes, name="ended")
    runs = server.api.runs
    for own, request, status in (
        (kubeflow_runs.stop, runs.run_service_terminate_run, 400),
        (kubeflow_runs.retry, runs.run_service_retry_run, 409),
    ):
        with pytest.raises(ClusterError, match="SUCCEEDED"):
            own(server.api, run.id)
        with pytest.raises(ClusterError, match=f"HTTP {status}"):  # the server itself
            server.api.write("try it", request, run.id)


def test_a_stopped_run_ends_and_is_retried_from_there(server):
    run_id = start_run(server.api, "stopped", compile_to(passes, sleeps))
    wait_for_sleep(server, run_id)
    kubeflow_runs.stop(server.api, run_id)
    run = kubeflow_runs.follow(server.api, run_id, lambda _: None, pytest.fail, server.sleep)
    assert run.state == "FAILED"
    done = next(step for step in run.steps if step.name == "passes")
    kubeflow_runs.retry(server.api, run_id)
    assert not kubeflow_runs.read_run(server.api, run_id).is_over
    if REAL is not None:
        wait_for_sleep(server, run_id)
    assert done in kubeflow_runs.read_run(server.api, run_id).steps
    kubeflow_runs.stop(server.api, run_id)


def wait_for_sleep(server, run_id):
    while ("sleeps", "RUNNING") not in {
        (step.name, step.state) for step in kubeflow_runs.read_run(server.api, run_id).steps
    }:
        server.sleep(2)


def test_runs_are_listed_and_found_by_name(server):
    odd = f"50% + a bit & {uuid.uuid4().hex[:4]}"
    ids = [start_run(server.api, name, compile_to(passes)) for name in ("first", odd, "last")]
    assert {run.id for run in kubeflow_runs.runs(server.api, 3)} == set(ids)
    assert kubeflow_runs.run_named(server.api, odd).id == ids[1]
    assert kubeflow_runs.run_named(server.api, ids[2]).name == "last"
    for absent in ("nonesuch", str(uuid.UUID(int=1))):
        with pytest.raises(ClusterError, match=f"no run {absent}"):
            kubeflow_runs.run_named(server.api, absent)


def test_a_start_that_has_passed_starts_no_run(server, schedule):
    _, schedule_id = schedule(EVERY_DAY, start=AGES_AGO)
    server.pass_time(CONTROLLER_S)
    assert runs_of(server.api, schedule_id) == []


def test_a_start_that_is_a_time_of_the_schedule_counts(server, schedule):
    soon = server.now() + timedelta(seconds=70)
    cron = f"{soon.second} {soon.minute} {soon.hour} * * *"
    _, schedule_id = schedule(cron, start=soon.isoformat())
    server.pass_time(70 + CONTROLLER_S)
    assert len(runs_of(server.api, schedule_id)) == 1


def in_20_s(server):
    soon = server.now() + timedelta(seconds=20)
    return f"{soon.second} {soon.minute} {soon.hour} * * *"


def test_a_resumed_schedule_does_not_run_what_it_missed(server, schedule):
    name, schedule_id = schedule(in_20_s(server))
    schedules.pause(server.api, name)
    server.pass_time(30)
    resumed = schedules.resume(server.api, name, server.now())
    server.pass_time(CONTROLLER_S)
    (found,) = [one for one in schedules.schedules(server.api) if one.name == name]
    assert (found.id, found.status, found.in_place_of) == (resumed.id, "ENABLED", schedule_id)
    assert runs_of(server.api, schedule_id) == runs_of(server.api, resumed.id) == []
    assert found.parameters == {"word": "given"}


def test_a_deleted_schedule_leaves_its_run_going(server, schedule):
    name, schedule_id = schedule(in_20_s(server))
    server.pass_time(20 + CONTROLLER_S)
    (run_id,) = [run["run_id"] for run in runs_of(server.api, schedule_id)]
    schedules.delete(server.api, name)
    run = kubeflow_runs.follow(server.api, run_id, lambda _: None, pytest.fail, server.sleep)
    assert run.state == "SUCCEEDED"
