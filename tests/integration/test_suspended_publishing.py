"""Whoever takes part in publishing weights is suspended or killed in the midst of it."""

import asyncio
import os
import signal
import time
from types import SimpleNamespace

import pytest

from espalier.records import HungError
from tests.fakes.vllm_double import running
from tests.integration.commands import started
from tests.integration.waiting import wait_until
from tests.unit.rollout.vllm_play import engine_of, play, policy_at, sample_once

WITHIN_S = 300
SERVER = """
import os, signal, sys, time
from pathlib import Path
from tests.fakes.vllm_double import running

at, mark = sys.argv[2], Path(sys.argv[3])

def suspend(path):
    if path == at and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.3)  # the thread that sends the signal may run on for a moment

with running(Path(sys.argv[1])) as double:
    double.on_request = suspend
    print(double.url, flush=True)
    time.sleep(600)
"""
LEARNER = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from tests.unit.rollout.vllm_play import engine_of

engine = engine_of(SimpleNamespace(url=sys.argv[2]), request_timeout_s=60)
asyncio.run(engine.load_weights(Path(sys.argv[1]), 7))
"""
AHEAD = """
import os, signal, sys, time
from pathlib import Path
import torch
from espalier.records import NullTracker
from espalier.training.rl.publishing import WorkerPublisher
from tests.factories.tiny_training import profile_of, tiny_run, write_inputs

torch.set_num_threads(1)
folder = Path(sys.argv[1])
write_inputs(folder)
publish = WorkerPublisher.publish

def suspended(publisher, version):
    if version == 3:
        (folder / "suspended").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.3)
    publish(publisher, version)

WorkerPublisher.publish = suspended
profile = profile_of(
    max_staleness=2, rollout={"deadline_s": 6.0, "tool_timeout_s": 1.0}, training={"steps": 5}
)
run = tiny_run(folder, folder / "work", profile)
run.loop.run(NullTracker())
assert len(run.loop.progress.history) == 5
"""


@pytest.mark.parametrize("at", ["/pause", "/collective_rpc", "/update_weight_version"])
def test_a_server_suspended_in_an_exchange_is_named_and_resumed(tmp_path, at):
    policy_dir = policy_at(tmp_path / "policy")
    with started(policy_dir, at, tmp_path / "suspended", script=SERVER) as process:
        try:
            server = SimpleNamespace(url=process.stdout.readline().strip())
            engine = engine_of(server, exchange_timeout_s=3.0, request_timeout_s=60)
            began_s = time.monotonic()
            with pytest.raises(HungError, match=f"version 7 hangs: POST {at}"):
                asyncio.run(engine.load_weights(policy_dir, 7))
            assert time.monotonic() - began_s < 30
            os.kill(process.pid, signal.SIGCONT)
            again = engine_of(server, request_timeout_s=60)  # a busy machine wakes it slowly
            assert play(again, policy_dir, sample_once()).token_ids
        finally:
            process.kill()


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_learner_suspended_in_an_exchange_ends_well(tmp_path, end):
    policy_dir, pids = policy_at(tmp_path / "policy"), []

    def suspend(path):
        if path == "/collective_rpc" and pids:
            os.kill(pids.pop(), signal.SIGSTOP)
            (tmp_path / "suspended").touch()

    with running(policy_dir) as server:
        server.on_request = suspend  # the learner needs seconds until its first request
        with started(policy_dir, server.url, script=LEARNER) as process:
            pids.append(process.pid)
            wait_until((tmp_path / "suspended").exists, within_s=WITHIN_S)
            assert server.is_paused
            process.send_signal(end)
            if end == signal.SIGCONT:
                assert process.wait(WITHIN_S) == 0, process.stderr.read()
                assert not server.is_paused
                assert server.version.startswith("7-")
        server.on_request = lambda path: None
        assert play(engine_of(server), policy_dir, sample_once()).token_ids
        assert not server.is_paused


@pytest.mark.slow
def test_a_run_ahead_that_is_suspended_in_publishing_goes_on(tmp_path):
    """The time in which nothing ran is no hang, although it is longer than the limit."""
    with started(tmp_path, script=AHEAD) as process:
        wait_until((tmp_path / "suspended").exists, within_s=WITHIN_S)
        time.sleep(9)
        process.send_signal(signal.SIGCONT)
        assert process.wait(WITHIN_S) == 0, process.stderr.read()
