"""Runs that are told to stop: how long it takes, what they say, and what MLflow keeps of them."""

import json
import signal
import subprocess
import sys
import time

import pytest
from mlflow import MlflowClient

from tests.integration.commands import started
from tests.integration.waiting import wait_until

LIMIT_S = 5.0
"""From the signal to the end of the process."""

BUSY = """
import hashlib, sys
from espalier.steps.stopping import before_forced_end, stopping_on_signals

say = lambda line: print(line, flush=True)
with stopping_on_signals(say, "Run it again."), before_forced_end(lambda: say("last call")):
    say("ready")
    {work}
"""
IN_A_LIBRARY = 'hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)'  # hears no exception
IN_PYTHON = "while True: pass"
LOSING_ITS_PEERS = """
    try:
        while True: pass
    finally:
        raise ConnectionError("closed by peer")
"""
FORKED = """
    import os, time
    child = os.fork()
    if child == 0:
        say("child")
        time.sleep(60)
        os._exit(0)
    time.sleep(0.5)
    os.kill(child, 15)
    say(f"child {os.waitpid(child, 0)[1]}")
"""


def busy(work):
    command = [sys.executable, "-c", BUSY.format(work=work)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("work", "number", "said"),
    [
        (IN_PYTHON, signal.SIGINT, []),
        (IN_PYTHON, signal.SIGTERM, []),
        (IN_A_LIBRARY, signal.SIGTERM, ["last call"]),
        # a pod that a suspension ends must not look like one that refused
        (LOSING_ITS_PEERS, signal.SIGTERM, []),
    ],
)
def test_a_signal_ends_whatever_the_main_thread_does(work, number, said):
    with busy(work) as process:
        time.sleep(0.5)  # to be inside of the call
        process.send_signal(number)
        began = time.monotonic()
        assert process.wait(30) == 128 + number
        assert time.monotonic() - began < LIMIT_S
        first, *rest = process.stdout.read().splitlines()
    assert first == f"{number.name}: stopping within 4 s"
    assert rest == [*said, "stopped. Run it again."]


def test_a_second_ctrl_c_waits_for_nothing():
    with busy(IN_A_LIBRARY) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - began < 1.5


def test_a_forked_child_that_is_ended_stops_nobody_else():
    with busy(FORKED) as process:
        assert process.wait(30) == 0
        assert process.stdout.read().splitlines() == ["child", "child 15"]


def run(run_dir, *arguments):
    return started("run", "--profile", "smoke", "--out", run_dir, *arguments)


def statuses(run_dir):
    """Status of the parent run and of each stage, by name; {} before the experiment is there."""
    client = MlflowClient(f"sqlite:///{run_dir.parent / 'mlflow.db'}")
    found = client.search_experiments(filter_string="name = 'espalier'")
    runs = client.search_runs([experiment.experiment_id for experiment in found]) if found else []
    return {run.info.run_name: run.info.status for run in runs}


def wait_for_stage(run_dir, stage, process):
    """Return when the stage has begun, and computes."""
    notes = run_dir / "run.json"
    wait_until(
        lambda: notes.exists() and stage in json.loads(notes.read_text())["attempts"],
        within_s=300,
        process=process,
    )
    time.sleep(1.0)


def stop_within_limit(process, number):
    process.send_signal(number)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    took_s = time.monotonic() - began
    assert process.returncode == 128 + number, said
    assert took_s < LIMIT_S, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("stopped. The same command ")
    return said


@pytest.mark.slow
def test_a_stopped_run_is_killed_in_mlflow_and_goes_on(tmp_path):
    run_dir = tmp_path / "runs" / "one"
    process = run(run_dir)
    wait_for_stage(run_dir, "validate", process)
    stop_within_limit(process, signal.SIGTERM)
    assert statuses(run_dir) == {
        "one": "KILLED",
        "ingest": "FINISHED",
        "synthesize": "FINISHED",
        "validate": "KILLED",
    }
    process = run(run_dir)
    wait_for_stage(run_dir, "prepare_policy", process)
    said = stop_within_limit(process, signal.SIGINT)
    assert next(line for line in said.splitlines() if "kept" in line).startswith("ingest: kept")
    assert said.count("INFO ") == said.count("[transformers]") == 0
    assert {"one", "prepare_policy"} == {
        name for name, status in statuses(run_dir).items() if status == "KILLED"
    }
    assert "RUNNING" not in statuses(run_dir).values()


@pytest.mark.slow
def test_a_pipeline_of_step_processes_stops_with_its_step(tmp_path):
    run_dir = tmp_path / "runs" / "two"
    process = run(run_dir, "--runner", "kfp-local")
    database = run_dir.parent / "mlflow.db"
    wait_until(
        lambda: database.exists() and "ingest" in statuses(run_dir), within_s=300, process=process
    )
    stop_within_limit(process, signal.SIGTERM)
    assert statuses(run_dir) == {"two": "KILLED", "ingest": "KILLED"}
