"""Runs Python code in a fork of the warm interpreter: one script, or the calls of a session."""

from __future__ import annotations

import ast
import atexit
import code
import io
import linecache
import math
import os
import resource
import socket
import struct
import sys
import threading
import types
from typing import NoReturn

CALL = struct.Struct(">IdI")
"""Header of a session's call: its number, CPU seconds, length of its code in bytes."""
REPLY = struct.Struct(">IB")
"""Reply of a session at the end of a call: the call's number and its exit status. The code shares
the process and can send one, too; `run.Session` decides when a reply counts."""
_SCRIPT = "<script>"


class _Console(code.InteractiveInterpreter):
    """Interpreter with one namespace that records whether code failed."""

    def __init__(self) -> None:
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        super().__init__(main.__dict__)
        self.failed = False

    def showtraceback(self) -> None:
        """Print the traceback to standard error, without frames of this file."""
        self.failed = True
        super().showtraceback()

    def run(self, source: str, name: str, *, echo: bool) -> int:
        """Run code and return its exit status; `echo` prints the value of a final expression."""
        self.failed = False
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        try:
            for part in _compiled(source, name, echo=echo):
                if not self.failed:
                    self.runcode(part)
        except SyntaxError:
            self.failed = True
            self.showsyntaxerror(name)
        except (ValueError, OverflowError, RecursionError, MemoryError):
            self.showtraceback()
        return int(self.failed)


def run_once(source: str) -> NoReturn:
    """Run a script and exit with its status."""
    _refresh()
    try:
        status = _Console().run(source, _SCRIPT, echo=False)
    except SystemExit as leaving:
        status = _status(leaving)
    _leave(status)


def converse(control: int) -> NoReturn:
    """Run the calls from the channel in one namespace, until it closes or the code exits."""
    _refresh()
    console = _Console()
    try:
        with socket.socket(fileno=control) as channel, channel.makefile("rb") as incoming:
            while header := incoming.read(CALL.size):
                number, cpu_s, length = CALL.unpack(header)
                source = incoming.read(length).decode()
                _allow_cpu(cpu_s)
                status = console.run(source, f"<call {number}>", echo=True) if source else 0
                sys.stdout.flush()
                sys.stderr.flush()
                channel.sendall(REPLY.pack(number, status))
        status = 0
    except SystemExit as leaving:
        status = _status(leaving)
    _leave(status)


def _compiled(source: str, name: str, *, echo: bool) -> list[types.CodeType]:
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not echo or not isinstance(last, ast.Expr):
        return [compile(tree, name, "exec")]
    before = ast.Module(tree.body[:-1], tree.type_ignores)
    return [compile(before, name, "exec"), compile(ast.Interactive([last]), name, "single")]


def _refresh() -> None:
    """Reset argv, buffering and numpy's seed, which forks must not share; `random` does itself."""
    sys.argv = [""]
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _allow_cpu(cpu_s: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _status(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _leave(status: int) -> NoReturn:
    """Exit like Python, but skip the teardown of imported modules, which takes longest."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] as multiprocessing does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
