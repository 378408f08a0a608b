"""The process that compares mathematical answers: JSON lines in, one verdict per line out.

    python -I -m espalier.rewards.math_worker

Parsing and simplifying LaTeX can run without end and fill memory, and no signal interrupts a power
of large integers. This process has a memory limit and may be killed.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from typing import IO, Any

_MEMORY_BYTES = 2 * 2**30
"""Limit of the address space, bytes; sympy and its parser take about a quarter."""


def serve(requests: IO[str], verdicts: IO[str]) -> None:
    """Answer {"answer": ..., "gold": ...} with true or false, until the input ends."""
    import math_verify  # pyright: ignore[reportMissingTypeStubs] (it has none)

    upstream: Any = math_verify  # it has no types of its own
    latex = upstream.LatexExtractionConfig(boxed_match_priority=0)
    targets = (latex, upstream.ExprExtractionConfig())
    _limit_this_process()
    print("ready", file=verdicts, flush=True)
    for line in requests:
        asked = json.loads(line)
        try:
            gold, answer = (upstream.parse(asked[side], targets) for side in ("gold", "answer"))
            verdict = bool(gold) and upstream.verify(gold, answer)
        except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError):
            verdict = False
        print(json.dumps(verdict), file=verdicts, flush=True)


def _limit_this_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    logging.disable()
    serve(sys.stdin, sys.stdout)
