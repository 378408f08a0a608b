"""Training of two processes on this machine, of which one is lost."""

import os
import random
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.commands import started
from tests.integration.waiting import wait_until

DEADLINE_S = 300


def training(case, folder):
    code = "import sys; from tests.integration.lost_processes import main; main(*sys.argv[1:])"
    return started(case, folder, script=code)


def pid_of(folder, rank):
    noted = folder / f"pid-{rank}"
    wait_until(noted.exists, within_s=DEADLINE_S)
    return int(noted.read_text())


def errors_of(process, *, code):
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, said
    return [line for line in said.splitlines() if line.startswith("error: ")]


def test_a_killed_worker_ends_training_with_one_error(tmp_path):
    with training("talking", tmp_path) as process:
        worker = pid_of(tmp_path, 1)
        os.kill(worker, signal.SIGKILL)
        (error,) = errors_of(process, code=os.EX_TEMPFAIL)
    assert error.startswith("error: rank 1 of 2 processes that train together has ended: SIGKILL")
    assert not Path("/proc", str(worker)).exists()


def test_a_process_stuck_after_a_lost_worker_is_ended(tmp_path):
    with training("silent", tmp_path) as process:
        (error,) = errors_of(process, code=1)
    assert error.startswith("error: rank 1 of 2 processes that train together has ended: exit code")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_stopped_in_any_step_is_named_soon(tmp_path, rank):
    step = random.Random(rank).randrange(2, 12)
    (tmp_path / f"stops-{rank}").write_text(str(step))
    named = rf"error: .*\brank {rank} (has not reported: it is stopped|does not answer)"
    with training("stopping", tmp_path) as process:
        pids = [pid_of(tmp_path, each) for each in (0, 1)]

        def end():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        too_late = threading.Timer(60, end)  # then nothing more is said
        try:
            wait_until((tmp_path / "stopped").exists, within_s=DEADLINE_S)
            too_late.start()
            error = next((line for line in process.stderr if re.search(named, line)), None)
            too_late.cancel()
            assert error is not None, "not named within a minute"
            assert f", step {step}" in error
            os.kill(pids[0], signal.SIGCONT)
            assert process.wait(DEADLINE_S) == os.EX_TEMPFAIL
        finally:
            too_late.cancel()
            end()
