"""Files that are complete or absent: written under another name, then renamed into place."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from espalier.records.errors import ArtifactError


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield a draft that replaces `path` once the block has ended without an error.

    A reader meanwhile, or after a kill, sees the former file or this one.

    Raises:
        ArtifactError: the folder cannot be written, or the disk is full.
    """
    draft = path.with_name(f".{path.name}.partial")
    try:
        try:
            yield draft
            with draft.open("rb") as stream:
                os.fsync(stream.fileno())  # the rename may be on the disk before the bytes are
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be written ({error.strerror or error}). Free space, mend the folder's "
            "rights or choose another --out, and run the same command again"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a text as a `whole_file`, and make its folder; raises the same errors."""
    with whole_file(path) as draft:
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
