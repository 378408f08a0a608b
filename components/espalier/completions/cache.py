"""Answers on disk, keyed by the content of what was asked: a run goes on, or is replayed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from pydantic import BaseModel, ValidationError

_numbers = itertools.count()


class CachedReply(BaseModel, frozen=True, extra="forbid"):
    """The body of a reply, and the key that it was asked under."""

    key: str
    body: str


class AnswerCache:
    """One file a reply, `ab/abcdef....json`; several processes may share the folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> bytes | None:
        """The body kept under `key`; None where there is none, or only a damaged file."""
        try:
            kept = CachedReply.model_validate_json(self._path(key).read_bytes(), strict=True)
        except (FileNotFoundError, ValidationError):
            return None
        return kept.body.encode() if kept.key == key else None

    def put(self, key: str, body: bytes) -> None:
        """Keep a body; one move, so that a kill leaves whole files only."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}-{next(_numbers)}.partial")
        partial.write_text(CachedReply(key=key, body=_text(body)).model_dump_json(), "utf-8")
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"


def _text(body: bytes) -> str:
    """Bytes that are no text are no answer either: an empty body is refused for the same reason."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return ""
