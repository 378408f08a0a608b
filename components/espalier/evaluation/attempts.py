"""Finished attempts of a suite on disk, a JSON line each, so that a kill loses those in flight."""

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
    """Which attempt at which task."""

    task_id: str
    attempt: int


class Attempt(BaseModel):
    """One judged attempt at one task."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task_id: str
    attempt: int = Field(ge=0)
    """Number of the attempt at its task, from 0."""
    scores: dict[str, float]
    """As the authors of the benchmark compute them, by name; empty where it was lost."""
    solved: bool
    """Whether the headline score is 1: nothing is left to be desired."""
    answer: str | None
    finish_reason: str
    failure: str = ""
    """Kind of failure: empty where it was solved."""
    lost: bool = False
    """Lost from outside: it counts as 0 in every score, and is tried again by the same command."""
    tool_calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    """A policy's: tokens that it read. An endpoint's: of every request, as the server counts."""
    completion_tokens: int = 0
    cost: float = 0.0
    """In the currency of the endpoint's prices."""
    seconds: float = 0.0
    """From its begin to its end, for an endpoint; 0 for a policy, whose episodes share batches."""
    messages: tuple[Message, ...] = ()

    @property
    def key(self) -> AttemptKey:
        """Task and number."""
        return AttemptKey(self.task_id, self.attempt)


class AttemptFile:
    """A file of attempts at one suite by one model, which one process writes at a time."""

    def __init__(self, path: Path, stream: FileIO, kept: dict[AttemptKey, Attempt]) -> None:
        self._path = path
        self._stream = stream
        self.kept: Mapping[AttemptKey, Attempt] = kept
        """Attempts that are finished."""
        self._kept = kept

    @classmethod
    @contextmanager
    def opened(cls, path: Path, made_of: Mapping[str, str]) -> Generator[Self]:
        """Open the file, and make it where it is not there.

        A last line without an end is that of a killed process: it is cut off.

        Args:
            path: of the file.
            made_of: digests that all its attempts depend on; they are its first line.

        Raises:
            ArtifactError: another process writes it, it is about something else, or a line is no
                attempt; the message names the line.
        """
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("a+b", buffering=0)  # what is half written must not be retried
        with stream:
            with _writing(path):
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise ArtifactError(
                        f"{path}: another process writes these attempts. Wait for it, or choose "
                        "another --out"
                    ) from error
                kept = _read(path, stream, {"schema": str(_SCHEMA), **made_of})
            yield cls(path, stream, kept)

    def add(self, attempt: Attempt) -> None:
        """Keep a finished attempt: it is on the disk when this returns.

        Raises:
            ArtifactError: the disk is full, or the file cannot be written.
        """
        with _writing(self._path):
            _append(self._stream, _line(attempt))
        self._kept[attempt.key] = attempt


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Only around the file itself: an OSError of whoever plays is not the file's."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{path}: attempts cannot be kept there ({error}). Free space or choose another "
            "folder, and run the same command again"
        ) from error


def _line(attempt: Attempt) -> bytes:
    try:
        return attempt.model_dump_json().encode()
    except PydanticSerializationError:
        # half of a surrogate pair, as a model or a program may write it, is in no UTF-8
        return json.dumps(attempt.model_dump(), ensure_ascii=False).encode(errors="replace")


def _append(stream: FileIO, line: bytes) -> None:
    """Write a line to the disk; a write that takes only a part of it goes on with the rest."""
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
            f"{path}, line 1: these attempts are at another suite or by another model. Move the "
            "file away, or choose another --out"
        )
    kept: dict[AttemptKey, Attempt] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            attempt = Attempt.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            raise ArtifactError(
                f"{path}, line {number}: no attempt ({first['msg']}). Delete the line, and the "
                "same command plays it again"
            ) from error
        kept.setdefault(attempt.key, attempt)
    return kept


def _object(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
