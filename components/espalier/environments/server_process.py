"""Code that runs in a sandbox to start a family's servers and print their answers.

It uses only the standard library, because a sandbox has nothing else. `ServerSandbox` sends it into
the sandbox together with the family's own part.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

MAX_PRINTED = 32 * 1024
"""Most characters that a call of the session prints; a longer answer is left in a file."""
_TAIL = 800


def read_object(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None if it holds none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


def told(found: dict[str, Any] | None, file: str) -> str:
    """Return what a call of the session prints; a long answer is written to the new file `file`."""
    text = json.dumps(found or {})
    if len(text) <= MAX_PRINTED:
        return text
    for before in Path().glob("answer-*.json"):
        before.unlink()
    with open(file, "x", encoding="utf-8") as stream:
        stream.write(text)
    return json.dumps({"file": file})


def started(
    servers: dict[str, object], name: str, start: Callable[..., object], *arguments: object
) -> dict[str, Any]:
    """Start a server and register it; return {}, or {"fault": TEXT} if that fails."""
    try:
        servers[name] = start(name, *arguments)
    except (OSError, ValueError, tarfile.TarError) as error:
        return {"fault": str(error)}
    return {}


class ServerProcess:
    """A program of the user's, in its own folder."""

    def __init__(
        self, name: str, argv: list[str], variables: dict[str, str], *, has_pipes: bool
    ) -> None:
        """Unpack the program's files, if there are some, and start it in their folder.

        Args:
            name: name of the folder, and of the archive NAME.tar.gz.
            argv: the program and its arguments.
            variables: environment variables besides those of the sandbox.
            has_pipes: whether its standard input and output are pipes. If not, it has no input,
                and its output is part of `last_words`.
        """
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        packed = Path(f"{name}.tar.gz")
        if packed.exists():
            with tarfile.open(packed) as archive:
                archive.extractall(folder, filter="data")
            packed.unlink()
        self._said = Path("/tmp", f"{name}.said")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, **variables},
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else said,
                stderr=said,
            )

    def last_words(self) -> str:
        """Return the end of its output."""
        with self._said.open("rb") as file:
            file.seek(max(0, self._said.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
