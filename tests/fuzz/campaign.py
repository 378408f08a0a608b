"""Runs the cases of a target, counts outcomes, and makes a failing case small.

A case is bytes that depend on the target, the seed and its number alone.
"""

import asyncio
import base64
import contextlib
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_WARM_UP = 0.3
"""Share of the cases after which memory is expected to be flat."""
_MAX_GROWTH_MIB = 24.0
"""Of memory after the warm-up. An allocator's own noise is some MiB; a leak of one kilobyte a case
is 100 MiB in 100,000."""
_SHRINK_S = 30.0
_CHECK_S = 60.0


class Violation(Exception):
    """What a target did that it must not do."""


class Target(ABC):
    """Something that reads what others send."""

    name: str
    case_s: float = 5.0
    """Longest time of a case; beyond it hangs."""
    at_once: int = 1
    """Cases side by side."""
    between_checks: int = 2000
    """Cases from one check to the next."""

    @abstractmethod
    def make(self, dice: random.Random) -> bytes:
        """A case."""

    @abstractmethod
    async def run(self, case: bytes) -> str:
        """The outcome, in a word or two.

        Raises:
            Violation: it must not be so.
        """

    async def check(self) -> None:  # noqa: B027 (a parser has nothing to ask)
        """Ask something well-behaved, now and then and at the end.

        Raises:
            Violation: it is not answered as it should.
        """

    @contextlib.asynccontextmanager
    async def opened(self):
        """The target while the block runs."""
        yield self


@dataclass
class Failure:
    """A case that violated something."""

    number: int
    reason: str
    case: bytes


@dataclass
class Report:
    """What became of a campaign."""

    target: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    outcomes: Counter = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest_s: float = 0.0
    growth_mib: float = 0.0
    peak_mib: float = 0.0

    @property
    def is_flat(self) -> bool:
        """Whether memory stayed."""
        return self.growth_mib <= _MAX_GROWTH_MIB

    def figures(self):
        """For the last line."""
        return {
            "target": self.target,
            "seed": self.seed,
            "cases": self.cases,
            "seconds": round(self.seconds, 1),
            "failures": len(self.failures),
            "slowest_s": round(self.slowest_s, 3),
            "memory_growth_mib": round(self.growth_mib, 1),
            "memory_peak_mib": round(self.peak_mib, 1),
            "memory_is_flat": self.is_flat,
            "outcomes": dict(sorted(self.outcomes.items())),
        }


def case_of(target, seed, number):
    """The case of that number."""
    return target.make(random.Random(f"{target.name}:{seed}:{number}"))


async def fuzz(target, *, seed, cases, seconds, say, max_failures=5):
    """Run cases from 0 on, until their number, the time or too many failures are reached.

    They run in rounds; between two of them nothing else is asked, and `Target.check` is.
    """
    report, memory = Report(target.name, seed), []
    began_s = time.monotonic()

    def is_over():
        is_late = time.monotonic() - began_s > seconds
        return is_late or report.cases >= cases or len(report.failures) >= max_failures

    async def worker(numbers):
        for number in numbers:
            if is_over():
                return
            await _one(target, seed, number, report)
            memory.append(resident_mib())

    async with target.opened():
        while not is_over():
            numbers = iter(range(report.cases, min(cases, report.cases + target.between_checks)))
            async with asyncio.TaskGroup() as group:
                for _ in range(target.at_once):
                    group.create_task(worker(numbers))
            await _check(target, report)
            say(f"{target.name}: {report.cases} cases, {len(report.failures)} failures")
        report.seconds = time.monotonic() - began_s
        for failure in report.failures:
            if failure.number >= 0:
                failure.case = await shrunk(target, failure.case)
                say(described(target, seed, failure))
    settled = memory[int(_WARM_UP * len(memory)) :]
    if len(settled) >= 8:
        quarter = len(settled) // 4
        first, last = settled[:quarter], settled[-quarter:]
        report.growth_mib = statistics.median(last) - statistics.median(first)
    report.peak_mib = max(memory, default=0.0)
    return report


async def _one(target, seed, number, report):
    case = case_of(target, seed, number)
    began_s = time.monotonic()
    outcome = await outcome_of(target, case)
    report.slowest_s = max(report.slowest_s, time.monotonic() - began_s)
    report.cases += 1
    if isinstance(outcome, Violation):
        report.failures.append(Failure(number, str(outcome), case))
        outcome = "violation"
    report.outcomes[outcome] += 1


async def _check(target, report):
    try:
        async with asyncio.timeout(_CHECK_S):
            await target.check()
    except (Violation, TimeoutError) as error:
        reason = f"a well-behaved request after {report.cases} cases: {error or 'no answer'}"
        report.failures.append(Failure(-1, reason, b""))


async def outcome_of(target, case):
    """The outcome of a case, or the Violation that it is."""
    try:
        async with asyncio.timeout(target.case_s):
            return await target.run(case)
    except TimeoutError:
        return Violation(f"no end within {target.case_s:g} s")
    except Violation as violation:
        return violation
    except Exception as error:  # noqa: BLE001 (whatever a parser raises unasked is what we look for)
        return Violation(f"{type(error).__name__}: {error}"[:500])


async def shrunk(target, case):
    """A shorter case that violates something as well, found in half a minute."""
    end_s = time.monotonic() + _SHRINK_S
    size = len(case) // 2
    while size >= 1 and time.monotonic() < end_s:
        place = 0
        while place < len(case) and time.monotonic() < end_s:
            shorter = case[:place] + case[place + size :]
            if isinstance(await outcome_of(target, shorter), Violation):
                case = shorter
            else:
                place += size
        size //= 2
    return case


def described(target, seed, failure):
    """How to see a failure again."""
    name, encoded = target.name, base64.b64encode(failure.case).decode()
    return (
        f"FAILED {name}, case {failure.number}: {failure.reason}\n"
        f"  case    {failure.case[:2000]!r}\n"
        f"  again   python -m tests.fuzz {name} --seed {seed} --case {failure.number}\n"
        f"  small   python -m tests.fuzz {name} --bytes {encoded[:4000]}"
    )


def resident_mib():
    """Memory of this process, and so of servers that run in its threads."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20
