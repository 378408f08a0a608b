"""Which runs are over their limits, from a picture of the processes."""

from sandboxd.processes import Process
from sandboxd.watchdog import offences
from sandboxd.wire import Limits

MIB = 2**20
LIMITS = Limits(memory_bytes=100 * MIB, processes=10)


class _Run:
    def __init__(self, runner_pid, memory_bytes=100 * MIB):
        self.runner_pid = runner_pid
        self.limits = Limits(memory_bytes=memory_bytes)


def _processes(*rows):
    """(pid, parent, threads, MiB); numbers that no machine has, so that nothing else is read."""
    return {
        pid: Process(pid, parent, threads, held * MIB, 0) for pid, parent, threads, held in rows
    }


RUNNER, OTHER = 2**30, 2**30 + 100


def test_memory_is_that_of_all_descendants_together():
    run = _Run(RUNNER)
    family = _processes(
        (RUNNER, 1, 1, 500), (RUNNER + 1, RUNNER, 1, 60), (RUNNER + 2, RUNNER + 1, 1, 60)
    )
    assert offences([run], family, LIMITS) == [(run, "memory")]
    assert offences([_Run(OTHER)], family, LIMITS) == []


def test_a_run_has_its_own_limit():
    small, large = _Run(RUNNER, 10 * MIB), _Run(OTHER)
    family = _processes((RUNNER + 1, RUNNER, 1, 20), (OTHER + 1, OTHER, 1, 70))
    assert offences([small, large], family, LIMITS) == [(small, "memory")]


def test_of_runs_that_are_too_much_together_the_largest_goes():
    small, large = _Run(RUNNER), _Run(OTHER)
    family = _processes((RUNNER + 1, RUNNER, 1, 50), (OTHER + 1, OTHER, 1, 70))
    assert offences([small, large], family, LIMITS) == [(large, "memory")]


def test_threads_count_as_processes():
    run = _Run(RUNNER)
    family = _processes((RUNNER + 1, RUNNER, 30, 1))
    assert offences([run], family, LIMITS) == [(run, "processes")]


def test_a_run_that_has_not_started_is_no_offence():
    assert offences([_Run(0)], _processes((5, 0, 99, 999)), LIMITS) == []
