"""What a disk refuses, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from espalier.records import StorageError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write `path` inside the block.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}). Free space, mend the rights of the "
            "folder, or choose another"
        ) from error
