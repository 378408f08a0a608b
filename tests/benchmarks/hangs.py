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
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 2.0
SLACK_S = 20.0
"""On top of the deadline: the loop's ten seconds, the other ranks' ten, a busy machine."""


class Case(NamedTuple):
    """One hang."""

    status: int
    """How the process has to end."""
    named: str
    """What its output has to say, as a pattern."""


CASES = {
    "tool in turns": Case(1, r"sampling hangs: .* for the tool search"),
    "tool ahead": Case(1, r"sampling hangs: .* for the tool search"),
    "tool given up": Case(0, r"the tool search took longer than rollout\.tool_timeout_s"),
    "engine in turns": Case(1, r"sampling hangs: .* for the policy's next message"),
    "engine ahead": Case(1, r"sampling hangs: .* for the policy's next message"),
    "weights": Case(1, r"weights for version 7 hangs: POST /collective_rpc"),
    "killed rank": Case(1, r"rank 1 of 2 processes .* has ended: SIGKILL"),
    "stopped rank": Case(1, r"rank 1 has not been heard of: it is stopped"),
    "standing rank": Case(1, r"rank 1 has not come to it: it is at work after"),
}


def main():
    """Play all cases, or the one that is named."""
    if len(sys.argv) > 1:
        play(sys.argv[1], Path(sys.argv[2]))
        return
    found = {}
    with tempfile.TemporaryDirectory(prefix="espalier-hangs-") as folder:
        for name, case in CASES.items():
            found[name] = judged(name, case, Path(folder))
            said = found[name]
            print(
                f"{name}: status {said['status']}, {said['after_s']} s: {said['line']}", flush=True
            )
    wrong = [name for name, one in found.items() if not one["as_it_should_be"]]
    print(json.dumps({"benchmark": "hangs", "cases": len(found), "wrong": wrong, "found": found}))
    sys.exit(bool(wrong))


def judged(name, case, folder):
    """Play one case in a process of its own, and compare."""
    command = [sys.executable, "-m", "tests.benchmarks.hangs", name, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as it:
        lines, begun_s, named_s = [], None, None
        for line in it.stdout:
            lines.append(line.strip())
            if line.startswith("hangs from now"):
                begun_s = time.monotonic()
            elif named_s is None and re.search(case.named, line):
                named_s = time.monotonic()
    after_s = named_s - begun_s if named_s and begun_s else None
    line = next((line for line in lines if re.search(case.named, line)), " | ".join(lines[-3:]))
    return {
        "status": it.returncode,
        "after_s": None if after_s is None else round(after_s, 1),
        "line": line[:300],
        "as_it_should_be": it.returncode == case.status
        and after_s is not None
        and after_s < DEADLINE_S + SLACK_S,
    }


def play(name, folder):
    """One case; ends as the command line does, with an error and status 1."""
    from espalier.records import EspalierError

    kind, _, how = name.partition(" ")
    plays = {"tool": training, "engine": training, "weights": weights}.get(kind, ranks)
    try:
        plays(kind, how, folder / name.replace(" ", "-"))
    except EspalierError as error:
        sys.exit(f"error: {error}")


def begun():
    """The first thing that hangs says so."""
    if not _begun.is_set():
        _begun.set()
        print("hangs from now", flush=True)


_begun = threading.Event()


def training(kind, how, folder):
    """A tiny run whose tool, or whose engine, never answers."""
    from espalier.records import NullTracker
    from espalier.rollout.engines.lockstep import LockstepEngine
    from tests.factories.tiny_training import SEARCH, profile_of, tiny_run, write_inputs

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
        run.loop._parts.dev_score = _no_score
    run.loop.run(NullTracker())


def _no_score():
    from espalier.training.supervised import DevScore

    return DevScore(0.0)


def weights(kind, how, folder):
    """An exchange with a server that takes the request and never answers."""
    del kind, how
    from tests.fakes.vllm_double import running
    from tests.unit.rollout.vllm_play import engine_of, policy_at

    policy_dir = policy_at(folder)
    with running(policy_dir) as server:
        server.answers["/collective_rpc"] = [("slow", 15.0)]
        begun()
        engine = engine_of(server, exchange_timeout_s=DEADLINE_S, request_timeout_s=60)
        asyncio.run(engine.load_weights(policy_dir, 7))


def ranks(kind, how, folder):
    """Two processes, of which one is killed, stopped, or stands still."""
    del how
    import torch

    from espalier.training.launch import local_workers, training_processes

    folder.mkdir()
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=partial(rank, kind, folder),
        launcher=local_workers,
        timeout_s=DEADLINE_S,
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
    main()
