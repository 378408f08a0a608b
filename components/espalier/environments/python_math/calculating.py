"""Programs that can only calculate: their results are shared by the episodes that write them.

    x = 37
    x += 4 * 6        prints 61, whoever runs it and however often
    print(x)

A warm policy writes the same program in most attempts at a story, and running it is the slowest
part of an episode. What may be otherwise the next time is run each time: whatever imports, looks up
attributes, defines, reads, or calls any but a few functions, and what a limit touched.
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
"""Characters of a program that is remembered."""
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
"""Most that the printed bytes of remembered programs and these may take."""
_OVERHEAD_BYTES = 4096
"""Of a remembered program: its text, and the result but for what was printed."""
_MOST_UNSETTLED = 1000


def only_calculates(code: str) -> bool:
    """Whether a program prints the same each time, as far as its characters alone can prove it."""
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
    """What programs that only calculate have printed; used on the event loop of one pool alone."""

    def __init__(self) -> None:
        self.results: LRUCache[str, ExecResult] = LRUCache(_REMEMBERED_BYTES, getsizeof=_num_bytes)
        self.locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held by whoever runs a program, while others wait for what it prints."""
        self.unsettled: LRUCache[str, None] = LRUCache(_MOST_UNSETTLED)
        """Programs whose run brought nothing to remember: nobody waits for another's run of them,
        or else all that write an endless one would wait for its limit in turn."""


def _num_bytes(result: ExecResult) -> int:
    return _OVERHEAD_BYTES + len(result.stdout) + len(result.stderr)


def _is_final(result: ExecResult) -> bool:
    """Whether the program itself came to its end, by its last line or by an error."""
    ended = result.exit_status in (0, 1) and result.killed_by is None
    touched = result.truncated or result.stderr.rstrip().endswith(b"MemoryError")
    return ended and not touched


class CalculatingRuns(SeparateRuns):
    """Runs programs as `SeparateRuns` does, but shares results of those that only calculate.

    Args:
        sandboxes: to borrow from.
        timeout_s: limit of each program.
        known: what all episodes over these sandboxes share.
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float, known: Calculations) -> None:
        super().__init__(sandboxes, timeout_s)
        self._known = known

    async def _run(self, code: str) -> ExecResult:
        if code in self._known.unsettled or not only_calculates(code):
            return await super()._run(code)
        return await self._shared(code) or await super()._run(code)

    async def _shared(self, code: str) -> ExecResult | None:
        """The result of the program's first run; None where that left it unsettled."""
        known = self._known
        lock = known.locks.setdefault(code, asyncio.Lock())
        with call_waits():
            await lock.acquire()
        try:
            if code in known.results or code in known.unsettled:
                return known.results.get(code)
            result = await super()._run(code)
            if _is_final(result):
                known.results[code] = result
            return result
        finally:
            if code not in known.results:  # also where its sandbox was lost, or none was to be had
                known.unsettled[code] = None
            lock.release()
