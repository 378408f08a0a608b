"""What processes do in the tests of lost companions."""

import os
import sys
import time
from functools import partial
from pathlib import Path

import torch

from espalier.records import TrainingError
from espalier.training import companions
from espalier.training.local_companions import local_companions
from espalier.training.team import team


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


def train(case, folder, makes):
    """One of two processes is lost while the first talks to it, or while it hears nothing."""
    companion = partial(talk_forever, folder) if case == "talking" else leave
    with team(2, device=torch.device("cpu"), companion=companion, companions=makes) as processes:
        if case == "talking":
            talk_forever(folder, processes)
        companions._SILENT_FOR_S = 0.5
        while True:
            time.sleep(1)


def main(case, folder, makes=local_companions):
    try:
        train(case, Path(folder), makes)
    except TrainingError as error:
        sys.exit(f"error: {error}")
