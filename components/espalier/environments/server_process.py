"""What runs in a sandbox for every family whose servers do: starts one, prints what is asked.

Standard library alone, because a sandbox has nothing else. `ServerSandbox` sends it there together
with the family's own part.
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
"""Of what a call of the session prints; a longer answer is left in a file."""
_TAIL = 800


def read_object(line: bytes | str) -> dict[str, Any] | None:
    """The JSON object of a line, or None where it holds none."""
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) else None


def told(found: dict[str, Any] | None, file: str) -> str:
    """What a call of the session prints; a long answer goes into a new file of that name."""
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
    """Start a server, and put it among the others; {}, or {"fault": TEXT} where it fails."""
    try:
        servers[name] = start(name, *arguments)
    except (OSError, ValueError, tarfile.TarError) as error:
        return {"fault": str(error)}
    return {}


class ServerProcess:
    """A program of the user's, in a folder of its own."""

    def __init__(
        self, name: str, argv: list[str], variables: dict[str, str], *, has_pipes: bool
    ) -> None:
        """Unpack the program's files where there are some, and start it in their folder.

        Args:
            name: of the folder, and of the archive NAME.tar.gz.
            argv: the program and its arguments.
            variables: of its environment, beside those of the sandbox.
            has_pipes: whether its standard input and output are pipes. Without, it reads nothing,
                and what it prints is among its last words.
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
        """The end of what it said."""
        with self._said.open("rb") as file:
            file.seek(max(0, self._said.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
