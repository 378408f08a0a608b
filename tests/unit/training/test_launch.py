import os
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from espalier.determinism import TRAINER_VARIABLE
from espalier.records import LostWorkerError, TrainingError
from espalier.training import launch
from espalier.training.launch import local_workers, worker_launcher
from espalier.training.ray_workers import ray_workers
from tests.integration.waiting import wait_until

CPU = torch.device("cpu")
WILDCARDS = {"00000000", "0" * 32}
LISTENS = "0A"


class ScriptedWorkers:
    """Workers that never join; every poll takes the next of `failures`, the last one repeatedly."""

    address = "127.0.0.1"
    on_machine = 1

    def __init__(self, *failures):
        self.failures = list(failures) or [None]
        self.started = self.ended = False
        self.on_poll = lambda: None

    def start(self, main):
        self.started = True

    def failure(self):
        self.on_poll()
        return self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]

    @contextmanager
    def made(self, count, device):
        try:
            yield self
        finally:
            self.ended = True


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    monkeypatch.setattr(launch, "_POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(launch, "_FAILURE_KNOWN_WITHIN_S", 0.3)
    monkeypatch.setattr(launch, "JOIN_TIMEOUT", timedelta(seconds=0.5))


def training_processes(scripted, count):
    return launch.training_processes(
        count, device=CPU, worker_main=print, launcher=scripted.made, timeout_s=60
    )


def join(scripted, count=3):
    with training_processes(scripted, count):
        raise AssertionError("trains without its workers")


def listening_addresses():
    """Addresses that this process listens on, as /proc/net spells them."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {
        row[1].split(":")[0] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in own
    }


def test_one_process_starts_no_other():
    scripted = ScriptedWorkers()
    with training_processes(scripted, 1) as processes:
        assert processes.is_first
    assert not scripted.started


def test_a_worker_that_fails_before_joining_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(launch, "JOIN_TIMEOUT", timedelta(hours=1))
    scripted = ScriptedWorkers(None, LostWorkerError("rank 2 has ended"))
    with pytest.raises(TrainingError, match="rank 2"):
        join(scripted)
    assert scripted.ended


def test_workers_that_do_not_join_are_named():
    threads = torch.get_num_threads()
    scripted = ScriptedWorkers()
    with pytest.raises(TrainingError, match=r"\[1, 2\] .*127\.0"):
        join(scripted)
    assert scripted.ended
    assert torch.get_num_threads() == threads


def test_workers_are_awaited_on_one_address_only():
    seen = []
    scripted = ScriptedWorkers(None, TrainingError("enough"))
    scripted.on_poll = lambda: seen.append(listening_addresses())
    with pytest.raises(TrainingError, match="enough"):
        join(scripted)
    assert len(seen[-1]) > 0
    assert not any(addresses & WILDCARDS for addresses in seen)


def test_a_broken_connection_is_explained_by_the_failed_worker():
    # the failure is known a moment after the connection breaks
    scripted = ScriptedWorkers(None, None, LostWorkerError("rank 1 has ended"))
    with (
        pytest.raises(TrainingError, match="rank 1") as caught,
        launch.worker_failures_reported(scripted),
    ):
        raise RuntimeError("Connection closed by peer")
    assert "Connection closed" in str(caught.value.__cause__)


@pytest.mark.parametrize("own", [RuntimeError("CUDA out of memory"), ValueError("a bug")])
def test_an_error_of_rank_zero_is_not_replaced(own):
    reported = launch.worker_failures_reported(ScriptedWorkers())
    with pytest.raises(type(own), match=str(own)), reported:
        raise own


@pytest.mark.parametrize(("error", "code"), [(LostWorkerError, 75), (TrainingError, 1)])
def test_rank_zero_that_is_stuck_is_ended_with_its_code(monkeypatch, error, code):
    codes = []
    monkeypatch.setattr(launch.os, "_exit", codes.append)
    monkeypatch.setattr(launch, "_UNNOTICED_FOR_S", 0.02)
    with launch.worker_failures_reported(ScriptedWorkers(error("rank 1 has ended"))):
        wait_until(lambda: codes)
    assert codes[0] == code


def test_a_worker_that_speaks_again_ends_nobody(monkeypatch):
    monkeypatch.setattr(launch.os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    monkeypatch.setattr(launch, "_UNNOTICED_FOR_S", 0.02)
    with launch.worker_failures_reported(ScriptedWorkers(LostWorkerError("silent"), None)):
        time.sleep(0.2)


def test_a_worker_lost_while_others_join_is_named(monkeypatch):
    """It has reached the store, and torch waits for it in the group's own way."""
    monkeypatch.setattr(launch, "_wait_for_workers", lambda *_: None)
    scripted = ScriptedWorkers(LostWorkerError("rank 1 has ended"))
    short = launch.training_processes(
        2, device=CPU, worker_main=print, launcher=scripted.made, timeout_s=-59
    )
    with pytest.raises(LostWorkerError, match="rank 1"), short:
        raise AssertionError("trains without its worker")


def test_rank_zero_is_not_ended_while_it_works_on(monkeypatch):
    monkeypatch.setattr(launch.os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    monkeypatch.setattr(launch, "_UNNOTICED_FOR_S", 5.0)
    with launch.worker_failures_reported(ScriptedWorkers(LostWorkerError("rank 1 has ended"))):
        time.sleep(0.2)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(TrainingError, match=r"training\.processes asks for 4 .*has 2"),
        local_workers(4, torch.device("cuda")),
    ):
        raise AssertionError("started")
    with local_workers(2, torch.device("cuda")) as companions:
        assert companions.failure() is None


def test_a_ray_job_has_its_workers_on_all_nodes(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert worker_launcher({}) is local_workers
    assert worker_launcher({"PET_NNODES": "1"}) is local_workers
    on_nodes = worker_launcher({TRAINER_VARIABLE: "rayjob"})
    assert on_nodes.func is ray_workers
    assert on_nodes.keywords["environment"]["HF_HUB_OFFLINE"] == "1"
