import os
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from espalier.records import TrainingError
from espalier.training import companions, team
from espalier.training.local_companions import local_companions

CPU = torch.device("cpu")
WILDCARDS = {"00000000", "0" * 32}
LISTENS = "0A"


class Scripted:
    """Companions that never come; `losses` is what is said of them, the last of it for good."""

    address = "127.0.0.1"
    share_cores = True

    def __init__(self, losses=()):
        self.losses = list(losses)
        self.started = self.ended = False
        self.looked = lambda: None

    def start(self, duty):
        self.started = True

    def loss(self):
        self.looked()
        return self.losses.pop(0) if len(self.losses) > 1 else (self.losses or [None])[0]

    def wait(self):
        raise AssertionError("waits for those who never came")

    @contextmanager
    def made(self, count, device):
        del count, device
        try:
            yield self
        finally:
            self.ended = True


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(companions, "_LOOKS_EVERY_S", 0.02)
    monkeypatch.setattr(companions, "_SETTLES_WITHIN_S", 0.3)
    monkeypatch.setattr(team, "JOIN_TIMEOUT", timedelta(seconds=0.5))


def gathered(scripted, count=3):
    with team.team(count, device=CPU, companion=print, companions=scripted.made):
        raise AssertionError("trains without its companions")


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
    scripted = Scripted()
    with team.team(1, device=CPU, companion=print, companions=scripted.made) as processes:
        assert processes.is_first
    assert not scripted.started


def test_a_companion_that_ends_before_it_came_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(team, "JOIN_TIMEOUT", timedelta(hours=1))
    scripted = Scripted([None, "rank 2 has ended"])
    with pytest.raises(TrainingError, match="rank 2 has ended"):
        gathered(scripted)
    assert scripted.ended


def test_companions_that_do_not_come_are_named():
    threads = torch.get_num_threads()
    scripted = Scripted()
    with pytest.raises(TrainingError, match=r"of 3 processes.*ranks \[1, 2\] did not reach 127\.0"):
        gathered(scripted)
    assert scripted.ended
    assert torch.get_num_threads() == threads


def test_companions_are_awaited_on_their_address_alone():
    seen = []
    scripted = Scripted([None, "enough"])
    scripted.looked = lambda: seen.append(listening_addresses())
    with pytest.raises(TrainingError, match="enough"):
        gathered(scripted)
    assert len(seen[-1]) > 0
    assert not any(addresses & WILDCARDS for addresses in seen)


def test_a_connection_that_breaks_is_explained_by_the_companion_that_ended():
    # what has ended is known a moment after it is felt
    scripted = Scripted([None, None, "rank 1 has ended"])
    with (
        pytest.raises(TrainingError, match="rank 1 has ended") as caught,
        companions.watched(scripted),
    ):
        raise RuntimeError("Connection closed by peer")
    assert "Connection closed" in str(caught.value.__cause__)


@pytest.mark.parametrize("own", [RuntimeError("CUDA out of memory"), ValueError("a bug")])
def test_an_error_of_its_own_stays_what_it_is(own):
    with pytest.raises(type(own), match=str(own)), companions.watched(Scripted()):
        raise own


def test_a_process_that_works_on_and_notices_by_itself_is_not_ended(monkeypatch):
    monkeypatch.setattr(companions.os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    monkeypatch.setattr(companions, "_SILENT_FOR_S", 5.0)
    with companions.watched(Scripted(["rank 1 has ended"])):
        time.sleep(0.2)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with (
        pytest.raises(TrainingError, match=r"training\.processes=4 .* this machine has 2"),
        local_companions(4, torch.device("cuda")),
    ):
        raise AssertionError("started")
