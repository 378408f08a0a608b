"""The process that compares mathematical answers: JSON lines in, one verdict per line out.

    python -I -m espalier.rewards.math_worker SECONDS

Parsing and simplifying LaTeX can run without end and fill memory, and no signal handler interrupts
a power of large integers. So this process has a memory limit, and the kernel ends it once a
comparison has taken SECONDS of processor time. math-verify's own alarms are off: they also count
the time that a busy machine gives to other processes.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from typing import IO, Any

_MEMORY_BYTES = 2 * 2**30
"""Limit of the address space, bytes; sympy and its parser take about a quarter."""


def serve(requests: IO[str], verdicts: IO[str], within_s: int) -> None:
    """Answer {"answer": ..., "gold": ...} with true or false, until the input ends.

    Args:
        requests: JSON objects, one per line.
        verdicts: receives the line "ready", then the answers.
        within_s: processor seconds for each comparison.
    """
    import math_verify  # pyright: ignore[reportMissingTypeStubs] (it has none)

    upstream: Any = math_verify  # the package has no types of its own
    latex = upstream.LatexExtractionConfig(boxed_match_priority=0)
    targets = (latex, upstream.ExprExtractionConfig())
    _limit_this_process()
    print("ready", file=verdicts, flush=True)
    for line in requests:
        asked = json.loads(line)
        _limit_processor_time(within_s)
        try:
            gold, answer = (
                upstream.parse(asked[side], targets, parsing_timeout=None)
                for side in ("gold", "answer")
            )
            verdict = bool(gold) and upstream.verify(gold, answer, timeout_seconds=None)
            verdict = verdict and not _are_two_numbers(gold[0], answer[0])
        except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError):
            verdict = False
        print(json.dumps(verdict), file=verdicts, flush=True)


_APART = 1e-6


def _are_two_numbers(gold: Any, answer: Any) -> bool:  # noqa: ANN401 (expressions of sympy)
    """Whether two single numbers differ: math-verify takes all that rounds to 0.000000 as equal."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return False
    wanted, said = (one.doit().evalf(30) for one in (gold, answer))  # floats of any size
    return bool(abs(wanted - said) > _APART * max(abs(wanted), abs(said)))


def _limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_processor_time(within_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + 1 + within_s
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


if __name__ == "__main__":
    logging.disable()
    serve(sys.stdin, sys.stdout, int(sys.argv[1]))
