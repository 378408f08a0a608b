"""The protocol between client and sandboxd: limits, requests, frames of a run, errors.

The response of a run is JSON lines: output frames, then one end frame.

    {"stream": "stdout", "data": "aGk="}
    {"end": {"exit_status": 0, "signal": null, "killed_by": null, ...}}

A response without an end frame means that the sandbox was lost.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

MAX_FILE_BYTES = 64 * 2**20
"""Largest file."""
MAX_BODY_BYTES = 96 * 2**20
"""Largest request body, which has the standard input in base64."""
MAX_ARGUMENT_BYTES = 128 * 1024
"""Longest argument or variable, the kernel's MAX_ARG_STRLEN."""
MAX_ARGUMENTS = 4096

USE_HEADER = "sandbox-use"
"""Header with the name of the use of a sandbox, from one reset to the next, that a request belongs
to. A reset names the next use, after which late requests of the former use are refused."""

Killer = Literal[
    "wall_time",
    "cpu_time",
    "memory",
    "processes",
    "files",
    "terminals",
    "output",
    "closed",
    "sandbox",
]
"""Cause of a run's end: a limit, a client that disconnected ("closed"), or the end of the sandbox,
which includes what the run itself did to its runner or its channel."""


class RequestError(ValueError):
    """A refused request with its HTTP status; nothing ran."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run; those of a sandbox are the maximum for its runs.

    Attributes:
        memory_bytes: memory of all processes of a run together, without the interpreter's own.
        cpu_s: processor time of each process.
        processes: number of processes and threads of all runs at one time.
        disk_bytes: size of the workspace, of /tmp, and of the largest file.
        output_bytes: standard output and error together; more is dropped.
        wall_s: time from the start of a run to its end.
    """

    memory_bytes: int = 512 * 2**20
    cpu_s: float = 60.0
    processes: int = 64
    disk_bytes: int = 256 * 2**20
    output_bytes: int = 2**20
    wall_s: float = 120.0

    def __post_init__(self) -> None:
        """Check that every limit is a positive number."""
        for name, value in asdict(self).items():
            whole = _TYPES[name] is int
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise RequestError(f"limits.{name} must be a number, not {value!r}")
            if not 0 < value < 2**62:
                raise RequestError(f"limits.{name} must be above 0 and below 2**62, not {value!r}")

    def within(self, ceiling: Limits) -> Limits:
        """Check that no limit is above the sandbox's.

        Raises:
            RequestError: a limit is.
        """
        for name, value in asdict(self).items():
            most = getattr(ceiling, name)
            if value > most:
                raise RequestError(f"limits.{name}={value} is above this sandbox's {most}")
        return self

    @classmethod
    def parse(cls, given: object) -> Limits:
        """Read limits from parsed JSON; missing ones have their default.

        Raises:
            RequestError: an unknown name, or an invalid value.
        """
        if not isinstance(given, dict):
            raise RequestError("limits must be an object")
        if unknown := set(given) - set(_TYPES):
            raise RequestError(f"limits has no {sorted(map(str, unknown))}")
        return cls(**given)


_TYPES: Mapping[str, type] = {
    part.name: int if part.type == "int" else float for part in fields(Limits)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run: a program (`argv`) or Python `code`, as a script or in the session."""

    argv: tuple[str, ...] = ()
    code: str | None = None
    session: bool = False
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> bytes:
        """The request as the body of POST /run."""
        content = asdict(self) | {"stdin": base64.b64encode(self.stdin).decode()}
        return json.dumps(content).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """End of a run; exactly one of exit status and signal is given."""

    exit_status: int | None
    signal: int | None
    killed_by: Killer | None
    truncated: bool
    duration_s: float
    cpu_s: float
    max_rss_bytes: int


def parse_run(body: bytes, ceiling: Limits) -> RunRequest:
    """Parse a run from a request body; missing limits are the sandbox's.

    Raises:
        RequestError: the body is invalid, or a limit is above the sandbox's.
    """
    given = _object(body)
    if unknown := set(given) - {part.name for part in fields(RunRequest)}:
        raise RequestError(f"a run has no {sorted(unknown)}")
    argv = given.get("argv") or []
    if not isinstance(argv, list) or len(argv) > MAX_ARGUMENTS:
        raise RequestError(f"argv must be a list of at most {MAX_ARGUMENTS} strings")
    code = given.get("code")
    if bool(argv) == (code is not None):
        raise RequestError("a run is either argv, with at least a program, or code")
    session = given.get("session", False)
    if not isinstance(session, bool):
        raise RequestError("session must be true or false")
    if session and (code is None or given.get("stdin") or given.get("env")):
        raise RequestError("a call of the session is code, without stdin or env of its own")
    return RunRequest(
        argv=tuple(_argument(word, f"argv[{place}]") for place, word in enumerate(argv)),
        code=None if code is None else _text(code, "code"),
        session=session,
        stdin=_decoded(given.get("stdin", "")),
        env=_environment(given.get("env", {})),
        limits=_limits(given.get("limits"), ceiling),
    )


def output_frame(stream: str, data: bytes) -> bytes:
    """An output frame: one line of JSON."""
    return json.dumps({"stream": stream, "data": base64.b64encode(data).decode()}).encode() + b"\n"


def end_frame(end: RunEnd) -> bytes:
    """The end frame: the last line of a run."""
    return json.dumps({"end": asdict(end)}).encode() + b"\n"


LONGEST_FRAME_BYTES = 256 * 1024
"""Longest line that clients accept; sandboxd's longest has 64 KiB of output in base64."""
_STREAMS = ("stdout", "stderr")


def parse_frame(line: bytes) -> RunEnd | tuple[str, bytes]:
    """Parse a line of a run's response: the run's end, or a stream's name and output.

    Raises:
        ValueError: the line is not a frame.
    """
    try:
        frame = json.loads(line)
        if isinstance(frame, dict) and frame.keys() == {"end"}:
            return _end(frame["end"])
        if isinstance(frame, dict) and frame.keys() == {"stream", "data"}:
            data = base64.b64decode(frame["data"], validate=True)
            if data and frame["stream"] in _STREAMS:
                return frame["stream"], data
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a frame of a run: {line[:80]!r}") from error
    raise ValueError(f"not a frame of a run: {line[:80]!r}")


def _end(given: object) -> RunEnd:
    if not isinstance(given, dict) or given.keys() != {part.name for part in fields(RunEnd)}:
        raise ValueError(f"not the end of a run: {str(given)[:80]}")
    end = RunEnd(**given)
    whole = (end.exit_status, end.signal, end.max_rss_bytes)
    seconds = (end.duration_s, end.cpu_s)
    if (
        any(value is not None and type(value) is not int for value in whole)
        or end.max_rss_bytes is None
        or any(type(value) not in (int, float) or not 0 <= value < math.inf for value in seconds)
        or type(end.truncated) is not bool
        or (end.killed_by is not None and end.killed_by not in get_args(Killer))
        or (end.exit_status is None) == (end.signal is None)
    ):
        raise ValueError(f"not the end of a run: {str(given)[:200]}")
    return end


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise RequestError("the body must be a JSON object")
    return given


def _text(given: object, name: str) -> str:
    if not isinstance(given, str):
        raise RequestError(f"{name} must be a string")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} is not valid Unicode: {error.reason}") from error
    return given


def _argument(given: object, name: str) -> str:
    word = _text(given, name)
    if "\0" in word:
        raise RequestError(f"{name} holds a NUL character, which no argument can")
    if len(word.encode()) >= MAX_ARGUMENT_BYTES:
        raise RequestError(f"{name} is longer than {MAX_ARGUMENT_BYTES} bytes; use stdin or a file")
    return word


def _environment(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or len(given) > MAX_ARGUMENTS:
        raise RequestError(f"env must be an object of at most {MAX_ARGUMENTS} strings")
    for name in given:
        if not name or "=" in name:
            raise RequestError(f"env has a name that is not a variable name: {name!r}")
    return {_argument(k, "a name in env"): _argument(v, f"env[{k!r}]") for k, v in given.items()}


def _decoded(given: object) -> bytes:
    try:
        return base64.b64decode(_text(given, "stdin"), validate=True)
    except ValueError as error:  # binascii.Error, or a character outside ASCII
        raise RequestError(f"stdin is not base64: {error}") from error


def _limits(given: object, ceiling: Limits) -> Limits:
    if given is None:
        return ceiling
    if not isinstance(given, dict):
        raise RequestError("limits must be an object")
    Limits.parse(given)
    return replace(ceiling, **given).within(ceiling)
