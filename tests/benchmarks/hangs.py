"""What hangs: is it named within its deadline, and does the command fail?

    python -m tests.benchmarks.hangs

Each case is a process of its own in which one thing never comes: a tool in the loop's own thread,
one in a thread that is given up, the engine, in turns and ahead of the learner; a vLLM server that
does not take weights; a rank that is killed, stopped, or stands still. A line says what was printed
and after how many seconds. The last line is one JSON object; exit code 1 where a case went wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from espalier.records import EspalierError, NullTracker
from espalier.rollout.engines.lockstep import LockstepEngine
from espalier.training.launch import local_workers, training_processes
from espalier.training.supervised import DevScore
from tests.factories.tiny_training import SEARCH, profile_of, tiny_run, write_inputs
from tests.fakes.vllm_double import running
from tests.unit.rollout.vllm_play import engine_of, policy_at

DEADLINE_S = 2.0
RANKS_DEADLINE_S = 10.0
"""On a busy machine a rank that runs may be silent for some seconds."""
SLACK_S = 20.0
"""On top of the deadline: the loop's ten seconds, the other ranks' ten, a busy machine."""


class Case(NamedTuple):
    """One hang."""

    status: int
    """How the process has to end."""
    named: str
    """What its output has to say, as a pattern."""


CASES = {
    "tool in turns": Case(os.EX_TEMPFAIL, r"sampling hangs: .* for the tool search"),
    "tool ahead": Case(1, r"sampling hangs: .* for the tool search"),
    "tool given up": Case(0, r"the tool search took longer than rollout\.tool_timeout_s"),
    "engine in turns": Case(1, r"sampling hangs: .* for the policy's next message"),
    "engine ahead": Case(1, r"sampling hangs: .* for the policy's next message"),
    "weights": Case(1, r"weights for version 7 hangs: POST /collective_rpc"),
    "killed rank": Case(1, r"rank 1 of 2 processes .* has ended: SIGKILL"),
    "stopped rank": Case(os.EX_TEMPFAIL, r"rank 1 has not reported: it is stopped"),
    "standing rank": Case(os.EX_TEMPFAIL, r"rank 1 has not reached it: it is at work after"),
}


def main():
    """Play all cases, or those that are named."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="espalier-hangs-") as folder:
        for name in sys.argv[1:] or CASES:
            found[name] = said = judged(name, CASES[name], Path(folder))
            print(
                f"{name}: status {said['status']}, {said['after_s']} s: {said['line']}", flush=True
            )
    wrong = [name for name, one in found.items() if not one["as_it_should_be"]]
    print(json.dumps({"benchmark": "hangs", "cases": len(found), "wrong": wrong, "found": found}))
    sys.exit(bool(wrong))


def judged(name, case, folder):
    """Play one case in a forked process, and compare what it wrote and how it ended."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        os.close(read)
        os.dup2(write, 1)
        os.dup2(write, 2)
        play(name, folder / name.replace(" ", "-"))
    os.close(write)
    lines, begun_s, named_s = [], None, None
    with os.fdopen(read) as stream:
        for line in stream:
            lines.append(line.strip())
            if line.startswith("hangs from now"):
                begun_s = time.monotonic()
            elif named_s is None and re.search(case.named, line):
                named_s = time.monotonic()
    _, status = os.waitpid(process, 0)
    after_s = named_s - begun_s if named_s and begun_s else None
    line = next((line for line in lines if re.search(case.named, line)), " | ".join(lines[-3:]))
    return {
        "status": os.waitstatus_to_exitcode(status),
        "after_s": None if after_s is None else round(after_s, 1),
        "line": line[:300],
        "as_it_should_be": os.waitstatus_to_exitcode(status) == case.status
        and after_s is not None
        and after_s < RANKS_DEADLINE_S + SLACK_S,
    }


def play(name, folder):
    """One case; ends the process as the command line does, with an error and status 1."""
    kind, _, how = name.partition(" ")
    plays = {"tool": training, "engine": training, "weights": weights}.get(kind, ranks)
    status = 1
    try:
        plays(kind, how, folder)
        status = 0
    except EspalierError as error:
        print(f"error: {error}", flush=True)
    finally:
        if sys.exc_info()[1]:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


def begun():
    """The first thing that hangs says so."""
    if not _begun.is_set():
        _begun.set()
        print("hangs from now", flush=True)


_begun = threading.Event()


def training(kind, how, folder):
    """A tiny run whose tool, or whose engine, never answers."""

    class Hangs:
        def observation(self, query):
            begun()
            threading.Event().wait(600)

    async def never(engine, slot, max_tokens):
        begun()
        await asyncio.Event().wait()

    folder.mkdir()
    write_inputs(folder)
    given_up = how == "given up"
    rollout = {"deadline_s": DEADLINE_S, "tool_timeout_s": 0.5, "tool_workers": 4 * given_up}
    profile = profile_of(
        max_staleness=2 if how == "ahead" else 0,
        rollout=rollout,
        training={"steps": 1 if given_up else 4, "dev_questions": 1},
    )
    run = tiny_run(folder, folder / "work", profile, Hangs() if kind == "tool" else SEARCH)
    if kind == "engine":
        LockstepEngine.sample = never
        # nobody answers dev questions before
        run.loop.parts.dev_score = _no_score
    run.loop.run(NullTracker())


def _no_score():
    return DevScore(0.0)


def weights(kind, how, folder):
    """An exchange with a server that takes the request and never answers."""
    del kind, how
    policy_dir = policy_at(folder)
    with running(policy_dir) as server:
        server.answers["/collective_rpc"] = [("slow", 15.0)]
        begun()
        engine = engine_of(server, exchange_timeout_s=DEADLINE_S, request_timeout_s=60)
        asyncio.run(engine.load_weights(policy_dir, 7))


def ranks(kind, how, folder):
    """Two processes, of which one is killed, stopped, or stands still."""
    del how
    folder.mkdir()
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=partial(rank, kind, folder),
        launcher=local_workers,
        timeout_s=RANKS_DEADLINE_S,
    ) as processes:
        rank(kind, folder, processes)


def rank(kind, folder, processes):
    """Meet twice; then rank 1 does not come any more."""
    for _ in range(2):
        processes.gather(processes.rank)
    if not processes.is_first:
        if kind == "standing":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
    begun()
    processes.gather(processes.rank)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
