"""The process that compares answers: JSON lists of arguments in, one result per line out.

    python -I comparing_worker.py math|patch SECONDS

Comparing can run without end and fill memory, and no signal handler interrupts a power of large
integers. So this process has a memory limit, and the kernel ends it once a comparison has taken
SECONDS of processor time. math-verify's own alarms are off: they also count the time that a busy
machine gives to other processes.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

ComparedKind = Literal["math", "patch"]
Compare = Callable[..., object]

_MEMORY_BYTES = 2 * 2**30
"""Limit of the address space, bytes; sympy and its parser take about a quarter."""
_FAULTS = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


def serve(compare: Compare, requests: IO[str], results: IO[str], within_s: int) -> None:
    """Answer each list of arguments with the result, null for a fault, until the input ends.

    Args:
        compare: compares, within limits that end this process.
        requests: JSON lists, one per line.
        results: receives the line "ready", then the results as JSON.
        within_s: processor seconds for each comparison.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=results, flush=True)
    for line in requests:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        soft = int(used.ru_utime + used.ru_stime) + 1 + within_s
        if hard == resource.RLIM_INFINITY or soft < hard:
            resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
        try:
            found = compare(*json.loads(line))
        except _FAULTS:
            found = None
        print(json.dumps(found), file=results, flush=True)


def math_comparer() -> Compare:
    """Return a function that says whether an answer equals a gold one, by math-verify."""
    import math_verify  # pyright: ignore[reportMissingTypeStubs] (it has none)

    upstream: Any = math_verify  # the package has no types of its own
    latex = upstream.LatexExtractionConfig(boxed_match_priority=0)
    targets = (latex, upstream.ExprExtractionConfig())

    def compare(answer: str, gold: str) -> bool:
        wanted, said = (
            upstream.parse(text, targets, parsing_timeout=None) for text in (gold, answer)
        )
        is_same = bool(wanted) and upstream.verify(wanted, said, timeout_seconds=None)
        return is_same and not _holds_other_numbers(wanted[0], said[0])

    return compare


def patch_comparer() -> Compare:
    """Return a function that scores a patch as SWE-RL does, from contents of files or diffs."""
    from espalier.rewards.swe_rl import content_likeness, patch_likeness

    def compare(
        before: Mapping[str, str] | None, gold: Mapping[str, str], after: Mapping[str, str]
    ) -> float:
        if before is None:
            return patch_likeness(gold, after).reward
        return content_likeness(before, gold, after).reward

    return compare


COMPARERS: Mapping[ComparedKind, Callable[[], Compare]] = {
    "math": math_comparer,
    "patch": patch_comparer,
}


_APART, _APART_INSIDE = 1e-6, 1e-3
"""Of two numbers, and of two inside of others, where six places may stand for a fraction."""


def _holds_other_numbers(
    gold: Any,  # noqa: ANN401 (expressions of sympy)
    answer: Any,  # noqa: ANN401
    apart: float = _APART,
) -> bool:
    """Whether numbers differ, also inside of a point, interval, set or matrix.

    math-verify takes all that rounds to 0.000000 as equal.
    """
    if getattr(gold, "is_number", False) and getattr(answer, "is_number", False):
        return gold != answer and _are_two_numbers(gold, answer, apart)
    compare = partial(_holds_other_numbers, apart=_APART_INSIDE)
    wanted, said = _parts(gold), _parts(answer)
    if len(wanted) != len(said):
        return False  # math-verify has compared them
    if "FiniteSet" in (type(gold).__name__, type(answer).__name__):
        pairs = [[compare(one, other) for other in said] for one in wanted]
        return any(map(all, pairs)) or any(map(all, zip(*pairs, strict=True)))
    return any(map(compare, wanted, said))


def _parts(expression: Any) -> list[Any]:  # noqa: ANN401 (an expression of sympy)
    """What a point, interval, set or matrix consists of; nothing for others."""
    kind = type(expression).__name__
    if kind in ("Tuple", "FiniteSet", "Union"):
        return list(expression.args)
    if kind == "Interval":
        return [expression.start, expression.end]
    return list(expression) if getattr(expression, "is_Matrix", False) else []


def _are_two_numbers(gold: Any, answer: Any, apart: float) -> bool:  # noqa: ANN401 (as above)
    wanted, said = (one.doit().evalf(30) for one in (gold, answer))  # floats of any size
    return bool(abs(wanted - said) > apart * max(abs(wanted), abs(said)))


def _main(kind: ComparedKind, within_s: int) -> None:
    # -I leaves only installed packages on the path, and espalier may run from a checkout
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    logging.disable()
    serve(COMPARERS[kind](), sys.stdin, sys.stdout, within_s)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))  # pyright: ignore[reportArgumentType] (of our own client)
