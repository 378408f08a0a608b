"""Training of two processes on this machine, of which one is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_S = 300


def started(case, folder):
    code = "import sys; from tests.integration.lost_processes import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", code, case, str(folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def pid_of(folder, rank):
    noted = folder / f"pid-{rank}"
    deadline = time.monotonic() + DEADLINE_S
    while not noted.exists():
        assert time.monotonic() < deadline, f"rank {rank} did not come"
        time.sleep(0.05)
    return int(noted.read_text())


def errors_of(process):
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, said
    return [line for line in said.splitlines() if line.startswith("error: ")]


def test_a_killed_companion_ends_training_with_one_error(tmp_path):
    with started("talking", tmp_path) as process:
        companion = pid_of(tmp_path, 1)
        os.kill(companion, signal.SIGKILL)
        (error,) = errors_of(process)
    assert error.startswith("error: rank 1 of 2 processes that train together has ended: SIGKILL")
    assert not Path("/proc", str(companion)).exists()


def test_a_process_that_hears_nothing_of_its_lost_companion_is_ended(tmp_path):
    with started("silent", tmp_path) as process:
        (error,) = errors_of(process)
    assert error.startswith("error: rank 1 of 2 processes that train together has ended: exit code")
