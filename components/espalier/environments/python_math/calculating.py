"""Programs that can only calculate run once, for all episodes that write them.

    x = 37
    x += 4 * 6        prints 61, whoever runs it and however often
    print(x)

A warm policy writes the same program in most attempts at a story, and running it is the slowest
part of an episode. What may be otherwise the next time is run each time: whatever imports, looks up
attributes, defines, reads, or calls any but a few functions, and what a limit ended.
"""

from __future__ import annotations

import asyncio
import builtins
import keyword
import re
from contextlib import nullcontext
from weakref import WeakValueDictionary

from cachetools import LRUCache

from espalier.environments.interpreter import SeparateRuns
from espalier.sandbox import ExecResult
from espalier.sandbox.call_time import current_call
from espalier.sandbox.choice import PoolThread

_LONGEST = 2000
"""Characters of a program that is remembered."""
_CALCULATION = re.compile(r"[\w \n=+\-*/%(),.<>]*", re.ASCII)
_ATTRIBUTE_OR_CALL_OF_RESULT = re.compile(r"\.(?!\d)|(?<!\d)\.|\)\s*\(")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b(\s*\()?", re.ASCII)
_FUNCTIONS = frozenset({"abs", "divmod", "float", "int", "max", "min", "pow", "print", "round"})
_NOT_VARIABLES = frozenset((*dir(builtins), *keyword.kwlist, *keyword.softkwlist))
_REMEMBERED_BYTES = 16 << 20
_OVERHEAD_BYTES = 4096


def only_calculates(code: str) -> bool:
    """Whether a program prints the same each time, as far as its characters alone can prove it."""
    if len(code) > _LONGEST or not _CALCULATION.fullmatch(code):
        return False
    if _ATTRIBUTE_OR_CALL_OF_RESULT.search(code):
        return False
    return all(map(_is_harmless, _NAME.finditer(code)))


def _is_harmless(found: re.Match[str]) -> bool:
    name, _, _ = found[0].partition("(")
    name = name.strip()
    if found[1]:
        return name in _FUNCTIONS
    return name not in _NOT_VARIABLES and "__" not in name


class Calculations:
    """What programs that only calculate have printed; used on the event loop of one pool alone."""

    def __init__(self) -> None:
        self.results: LRUCache[str, ExecResult] = LRUCache(_REMEMBERED_BYTES, getsizeof=_num_bytes)
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held by whoever runs a program, while others wait for what it prints."""


def _num_bytes(result: ExecResult) -> int:
    return _OVERHEAD_BYTES + len(result.stdout) + len(result.stderr)


class CalculatingRuns(SeparateRuns):
    """Runs programs as `SeparateRuns` does, but those that only calculate once.

    Args:
        sandboxes: to borrow from.
        timeout_s: limit of each program.
        known: what all episodes over these sandboxes share.
    """

    def __init__(self, sandboxes: PoolThread, timeout_s: float, known: Calculations) -> None:
        super().__init__(sandboxes, timeout_s)
        self._known = known

    async def _run(self, code: str) -> ExecResult:
        if not only_calculates(code):
            return await super()._run(code)
        turn = self._known.turns.setdefault(code, asyncio.Lock())
        call = current_call()
        with nullcontext() if call is None else call.waiting():
            await turn.acquire()
        try:
            result = self._known.results.get(code)
            if result is None:
                result = await super()._run(code)
                if result.exit_status is not None and result.killed_by is None:
                    self._known.results[code] = result
            return result
        finally:
            turn.release()
