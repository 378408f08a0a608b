"""Programs that only calculate: episodes that write the same program share its result.

    x = 37
    x += 4 * 6        prints 61 on every run
    print(x)

A warm policy writes the same program in most trajectories of a story, and running it is the slowest
part of an episode. Programs whose result may change are run every time: those that import, look up
attributes, define, read, or call any but a few functions, and those that hit a limit.
"""

from __future__ import annotations

import asyncio
import builtins
import keyword
import re
from weakref import WeakValueDictionary

from cachetools import LRUCache

from espalier.environments.interpreter import SeparateRuns
from espalier.sandbox import ExecResult
from espalier.sandbox.call_time import call_waits
from espalier.sandbox.choice import PoolThread

_LONGEST = 2000
"""Most characters of a program whose result is cached."""
_CALCULATION = re.compile(r"[\w \n=+\-*/%(),.<>]*", re.ASCII)
_MORE_THAN_CALCULATION = re.compile(
    r"""\.(?!\d)|(?<!\d)\.   # an attribute
    |\)\s*\(               # a call of what a call returned
    |\d[A-Za-z]            # 1or x: a keyword that begins within a number
    """,
    re.VERBOSE,
)
_NAME = re.compile(r"\b[A-Za-z_]\w*\b( *\()?", re.ASCII)
_FUNCTIONS = frozenset({"abs", "divmod", "float", "int", "max", "min", "pow", "print", "round"})
_NOT_VARIABLES = frozenset((*dir(builtins), *keyword.kwlist, *keyword.softkwlist))
_REMEMBERED_BYTES = 16 << 20
"""Most memory for cached programs and their output."""
_OVERHEAD_BYTES = 4096
"""Memory of a cached program apart from its output: its text, and the rest of the result."""
_MOST_UNSETTLED = 1000


def only_calculates(code: str) -> bool:
    """Return whether the characters of a program prove that it always prints the same."""
    if len(code) > _LONGEST or not _CALCULATION.fullmatch(code):
        return False
    if _MORE_THAN_CALCULATION.search(code):
        return False
    return all(map(_is_harmless, _NAME.finditer(code)))


def _is_harmless(found: re.Match[str]) -> bool:
    name = found[0].rstrip(" (")
    if found[1]:
        return name in _FUNCTIONS
    return name not in _NOT_VARIABLES and "__" not in name


class Calculations:
    """Results of programs that only calculate; used on the event loop of a single pool."""

    def __init__(self) -> None:
        self.results: LRUCache[str, ExecResult] = LRUCache(_REMEMBERED_BYTES, getsizeof=_num_bytes)
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while a program runs, so that others wait for its result."""
        self.unsettled: LRUCache[str, None] = LRUCache(_MOST_UNSETTLED)
        """Programs without a cacheable result. No episode waits for another one's run of them: with
        an endless program, they would all wait for its limit in turn."""


def _num_bytes(result: ExecResult) -> int:
    return _OVERHEAD_BYTES + len(result.stdout) + len(result.stderr)


class CalculatingRuns(SeparateRuns):
    """Runs programs like `SeparateRuns`, but shares the results of those that only calculate.

    Args:
        sandboxes: the pool to borrow from.
        timeout_s: time limit of each program.
        known: the results shared by all episodes with these sandboxes.
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float, known: Calculations) -> None:
        super().__init__(sandboxes, timeout_s)
        self._known = known

    async def _run(self, code: str) -> ExecResult:
        if code in self._known.unsettled or not only_calculates(code):
            return await super()._run(code)
        return await self._shared(code) or await super()._run(code)

    async def _shared(self, code: str) -> ExecResult | None:
        """Return the result of the program's first run; None if that was not cacheable."""
        known = self._known
        lock = known.locks.setdefault(code, asyncio.Lock())
        with call_waits():
            await lock.acquire()
        try:
            if code in known.results or code in known.unsettled:
                return known.results.get(code)
            result = await super()._run(code)
            # kept if the program ended by itself, at its last line or with an error
            ended = result.exit_status in (0, 1) and result.killed_by is None
            touched = result.truncated or result.stderr.rstrip().endswith(b"MemoryError")
            if ended and not touched:
                known.results[code] = result
            return result
        finally:
            if code not in known.results:  # also if its sandbox was lost, or none was free
                known.unsettled[code] = None
            lock.release()
