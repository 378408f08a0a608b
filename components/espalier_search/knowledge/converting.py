"""Texts of PDF, HTML and Office files, read in a process of its own with limits.

The packages that parse them are those of the extra `documents`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Self

from pydantic import BaseModel

from espalier.records import KnowledgeError
from espalier_search.knowledge import converting_worker
from espalier_search.knowledge.converting_worker import MEMORY_BYTES, PROCESSOR_S

INSTALL = "pip install 'espalier-agents-search[documents]'"
_PACKAGES: Mapping[str, tuple[str, ...]] = {
    ".docx": ("markitdown", "mammoth"),
    ".htm": ("markitdown",),
    ".html": ("markitdown",),
    ".pdf": ("markitdown", "pdfplumber"),
    ".pptx": ("markitdown", "pptx"),
    ".xlsx": ("openpyxl",),
}
"""Ending -> modules that read such a file."""
CONVERTED = frozenset(_PACKAGES)
"""Endings of the files that are converted."""
_START_WITHIN_S = 300.0
_REPLY_WITHIN_S = 4.0 * PROCESSOR_S
"""Longest wait for a file: a machine may be busy with other work."""
_END_WITHIN_S = 60.0
_MAX_REASON_CHARACTERS = 200
_MAX_REPLY_BYTES = 2**28


class UnreadableError(Exception):
    """A file that cannot be converted; the message is the reason."""


class Converted(BaseModel, frozen=True):
    """What a file holds: a text in Markdown, or tables."""

    text: str = ""
    title: str = ""
    """Title that the file states beside its text."""
    tables: dict[str, list[list[str]]] = {}
    """Name of a sheet -> its rows of cells."""


def is_convertible(ending: str) -> bool:
    """Whether the packages are installed that read files with this ending."""
    return all(importlib.util.find_spec(module) for module in _PACKAGES[ending])


class Converter:
    """The converting process; started at the first file, and after a file that ended it."""

    def __init__(self) -> None:
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()

    def convert(self, path: Path) -> Converted:
        """Return what the file at `path` holds.

        Raises:
            UnreadableError: it cannot be parsed, or takes too much time or memory.
            KnowledgeError: the process does not start.
        """
        process = self._process = self._process or _Process.started()
        process.connection.send_bytes(os.fsencode(path.absolute()))
        if reply := process.reply(_REPLY_WITHIN_S):
            return Converted.model_validate_json(reply)
        self._process = None
        raise UnreadableError(process.end())


@dataclass(frozen=True, slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    connection: Connection
    errors: IO[bytes]
    """What it wrote to stderr."""

    @classmethod
    def started(cls) -> Self:
        """Start it, and wait until it takes files."""
        ours, theirs = Pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-PB", converting_worker.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        process = cls(popen, ours, errors)
        if process.reply(_START_WITHIN_S) != b"ready":
            raise KnowledgeError(
                f"the process that reads files does not start ({process.end()}). Install what it "
                f"needs again: {INSTALL}"
            )
        return process

    def reply(self, within_s: float) -> bytes | None:
        """The next reply; None if the process has ended, or does not reply in time."""
        try:
            if self.connection.poll(within_s):
                return self.connection.recv_bytes(_MAX_REPLY_BYTES)
        except (EOFError, ConnectionResetError):
            self.popen.wait(_END_WITHIN_S)
        return None

    def end(self) -> str:
        """End the process if it is alive, and return why it ended."""
        code = self.popen.poll()
        self.popen.kill()
        self.popen.wait()
        self.connection.close()
        with self.errors:
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()
        last = said.rpartition("\n")[2][:_MAX_REASON_CHARACTERS]
        if code is None:
            return f"not read within {_REPLY_WITHIN_S:g} s"
        if code == -signal.SIGXCPU:
            return f"takes more than {PROCESSOR_S} s of processor time"
        if "\nMemoryError" in said:
            return f"takes more than {MEMORY_BYTES // 2**30} GiB of memory"
        if code < 0:
            return f"its reader was ended by {signal.Signals(-code).name}"
        return last.removeprefix("__main__.") or f"its reader ended with status {code}"
