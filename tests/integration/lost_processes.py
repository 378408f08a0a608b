"""What processes do in the tests of lost workers."""

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch

from espalier.records import LostWorkerError, TrainingError
from espalier.training import launch
from espalier.training.launch import local_workers, training_processes

TIMEOUT_S = 600.0  # of collective operations: these tests end before it
STOPPED_TIMEOUT_S = 15.0  # a busy machine may keep a process that runs waiting for seconds


def note_pid(folder, rank):
    partial_ = folder / f"partial-{rank}"
    partial_.write_text(str(os.getpid()))
    partial_.rename(folder / f"pid-{rank}")


def talk_forever(folder, processes):
    note_pid(folder, processes.rank)
    while True:
        processes.gather(processes.rank)


def leave(processes):
    """Ends without a word, as a machine that is switched off does."""
    del processes
    os._exit(3)


def run_loop(folder, processes):
    """The real loop; a process for which there is a step in `stops` stops in that step's update."""
    # seconds of imports, which the processes of other cases do without
    from espalier.training.rl.update import PolicyUpdate
    from tests.integration.two_processes import short_loop

    note_pid(folder, processes.rank)
    noted = folder / f"stops-{processes.rank}"
    stops = int(noted.read_text()) if noted.exists() else None
    apply = PolicyUpdate.apply

    def stopping(update, rows, units, step):
        if step.number + 1 == stops:
            (folder / "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return apply(update, rows, units, step)

    PolicyUpdate.apply = stopping
    short_loop(processes, folder / "loop", steps=40)


def run_two(folder, launcher):
    """The real loop in two processes, of which one stops."""
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=partial(run_loop, folder),
        launcher=launcher,
        timeout_s=STOPPED_TIMEOUT_S,
    ) as processes:
        run_loop(folder, processes)


def train(case, folder, launcher):
    """One of two processes is lost while rank 0 communicates with it, or works alone."""
    if case == "stopping":
        return run_two(folder, launcher)
    worker_main = partial(talk_forever, folder) if case == "talking" else leave
    with training_processes(
        2,
        device=torch.device("cpu"),
        worker_main=worker_main,
        launcher=launcher,
        timeout_s=TIMEOUT_S,
    ) as processes:
        if case == "talking":
            talk_forever(folder, processes)
        launch._UNNOTICED_FOR_S = 0.5
        while True:
            time.sleep(1)


def main(case, folder, launcher=local_workers):
    try:
        train(case, Path(folder), launcher)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL if isinstance(error, LostWorkerError) else 1)
