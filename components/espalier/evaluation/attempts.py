"""JSON-lines file of finished attempts: a killed evaluation repeats only those in flight."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from espalier.records import ArtifactError, Message

_SCHEMA = 1


class AttemptKey(NamedTuple):
    """Id of a task, and number of the attempt at it."""

    task_id: str
    attempt: int


class Attempt(BaseModel):
    """One judged attempt at one task."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task_id: str
    attempt: int = Field(ge=0)
    """Number of the attempt at its task, from 0."""
    scores: dict[str, float]
    """Official scores of the benchmark, by name; empty if the attempt was lost."""
    solved: bool
    """Whether the headline score reaches 1, its maximum."""
    answer: str | None
    finish_reason: str
    failure: str = ""
    """Kind of failure; empty if the task was solved."""
    lost: bool = False
    """Lost to an infrastructure fault: scores count as 0, and the same command tries it again."""
    tool_calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    """For a policy, the tokens it read; for an endpoint, the sum over requests, as it counts."""
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the endpoint's prices."""
    seconds: float = 0.0
    """Wall-clock time at an endpoint; 0 for a policy, whose episodes share batches."""
    messages: tuple[Message, ...] = ()

    @property
    def key(self) -> AttemptKey:
        """Task id and attempt number."""
        return AttemptKey(self.task_id, self.attempt)


class AttemptFile:
    """File of one model's attempts at one suite, written by one process at a time."""

    def __init__(self, path: Path, stream: FileIO, kept: dict[AttemptKey, Attempt]) -> None:
        self._path = path
        self._stream = stream
        self.kept: Mapping[AttemptKey, Attempt] = kept
        """Finished attempts."""
        self._kept = kept

    @classmethod
    @contextmanager
    def opened(cls, path: Path, made_of: Mapping[str, str]) -> Generator[Self]:
        """Open and lock the file; create it if it does not exist.

        A last line without a line break was cut short by a kill and is removed.

        Args:
            path: the file.
            made_of: digests that all its attempts depend on, stored as its first line.

        Raises:
            ArtifactError: another process is writing the file, its first line has other digests, or
                a line is not an attempt; the message names the line.
        """
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("a+b", buffering=0)  # close() must not retry a failed write
        with stream:
            with _writing(path):
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise ArtifactError(
                        f"{path}: another process is writing these attempts. Wait for it, or "
                        "choose another --out"
                    ) from error
                kept = _read(path, stream, {"schema": str(_SCHEMA), **made_of})
            yield cls(path, stream, kept)

    def add(self, attempt: Attempt) -> None:
        """Append a finished attempt; it is on disk when this returns.

        Raises:
            ArtifactError: the disk is full, or the file cannot be written.
        """
        with _writing(self._path):
            _append(self._stream, _line(attempt))
        self._kept[attempt.key] = attempt


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Report an OSError of the file as an ArtifactError; not for the code that plays attempts."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{path}: attempts cannot be written there ({error}). Free space or choose another "
            "folder, and run the same command again"
        ) from error


def _line(attempt: Attempt) -> bytes:
    try:
        return attempt.model_dump_json().encode()
    except PydanticSerializationError:
        # a lone surrogate, which a model or a program may emit, has no UTF-8 encoding
        return json.dumps(attempt.model_dump(), ensure_ascii=False).encode(errors="replace")


def _append(stream: FileIO, line: bytes) -> None:
    """Write a line and sync it to disk; a partial write continues with the rest."""
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[stream.write(rest) :]
    os.fsync(stream.fileno())


def _read(path: Path, stream: FileIO, head: Mapping[str, str]) -> dict[AttemptKey, Attempt]:
    stream.seek(0)
    # as bytes: a kill may leave half a character
    content = stream.readall()
    whole, _, rest = content.rpartition(b"\n")
    if rest:
        stream.truncate(len(content) - len(rest))
    lines = whole.split(b"\n") if whole else []
    if not lines:
        _append(stream, json.dumps(head, sort_keys=True).encode())
        return {}
    if _object(lines[0]) != head:
        raise ArtifactError(
            f"{path}, line 1: these attempts belong to another suite or model. Move the "
            "file away, or choose another --out"
        )
    kept: dict[AttemptKey, Attempt] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            attempt = Attempt.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise ArtifactError(
                f"{path}, line {number}: not an attempt ({first['msg']}). Delete the line, and the "
                "same command plays it again"
            ) from error
        kept.setdefault(attempt.key, attempt)
    return kept


def _object(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
