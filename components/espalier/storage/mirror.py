"""A copy in S3 of a folder of checkpoints, made by a thread while their owner goes on.

The owner replaces files by a rename, or writes them under new names before a replaced file names
them; so a state of the folder that two listings agree on is one from which to go on. The files are
linked, which pins their contents, and the links are published like an artifact: all or nothing.

One upload at a time: of what is written meanwhile only the newest state is sent, after a pause as
long as the upload took.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from espalier.records import MANIFEST_NAME, ArtifactError, Manifest, Provenance, StorageError
from espalier.records.artifact import describe
from espalier.storage.requests import TransferAbandoned

if TYPE_CHECKING:
    from espalier.storage.expiring import ExpiringLocation

POLL_S = 1.0
_SAVED_WITHIN_S = 60.0
"""A draft that was not written to for longer is that of a killed process."""
_PAUSE_AFTER_FAULT_S = 60.0
_DRAFT_SUFFIX = ".partial"
_TOUCHED_EVERY_S = 3600.0
"""The collector deletes after days without use."""
_GIVEN_UP_WITHIN_S = 10.0
"""For the part that is being sent, before its place may be forgotten."""


class _File(NamedTuple):
    inode: int
    num_bytes: int
    modified_ns: int


class FolderMirror:
    """Within its block, the newest state of `folder` is copied to `place`.

    After a block that succeeded, or was interrupted, a copy that is under way is given up. After
    one that failed the newest state is copied first: it is what the next attempt goes on from.
    """

    def __init__(
        self,
        folder: Path,
        place: ExpiringLocation,
        provenance: Provenance,
        say: Callable[[str], None],
    ) -> None:
        """Name what is copied and where to; nothing is requested yet.

        Args:
            folder: of the checkpoints, there or not.
            place: of the copy; it is given up when the block ends.
            provenance: of what the checkpoints lead to; it is their manifest's.
            say: takes a line from any thread.
        """
        self._folder, self._place = folder, place
        self._ended, self._is_given_up = threading.Event(), False
        self._provenance, self._say = provenance, say
        self._copied: dict[str, _File] = {}
        self._last_fault = ""
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)

    def restore(self, is_current: Callable[[Manifest], bool]) -> None:
        """Fill the folder with the copy, where it is empty and the copy is of the same work.

        Where the copy cannot be read or is damaged, a line says so and the folder stays empty.

        Args:
            is_current: whether a manifest is of the work that is to be done.
        """
        if _state(self._folder):
            return  # of an attempt whose disk was not lost: at least as new
        try:
            manifest = self._place.manifest()
            if manifest is None or not is_current(manifest):
                return
            self._place.touch()
            fetched = self._place.fetch(self._folder)
        except (StorageError, ArtifactError) as error:
            self._say(f"no checkpoint is taken from {self._place.uri}, the stage begins: {error}")
            return
        (self._folder / MANIFEST_NAME).unlink()
        self._copied = _state(self._folder)
        self._say(f"goes on from the checkpoint of {fetched.created} in {self._place.uri}")

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the thread, at once or after the newest state is copied."""
        if kind is not None and issubclass(kind, Exception):
            self._ended.set()
            self._thread.join()
            return
        self._is_given_up = True
        self._place.give_up()
        self._ended.set()
        if kind is None:
            self._thread.join(_GIVEN_UP_WITHIN_S)

    def _watch(self) -> None:
        pause_s = POLL_S
        touched = time.monotonic()
        while not self._ended.wait(pause_s):
            pause_s, seen, now = POLL_S, _state(self._folder), time.monotonic()
            if seen and seen != self._copied and not _is_being_saved(self._folder):
                is_copied = self._copy(seen)
                took_s = time.monotonic() - now
                pause_s = max(POLL_S, took_s) if is_copied else _PAUSE_AFTER_FAULT_S
                touched = time.monotonic()
            elif seen and now - touched > _TOUCHED_EVERY_S:
                self._touch()
                touched = now
        seen = _state(self._folder)
        if seen and seen != self._copied and not self._is_given_up:
            self._copy(seen)

    def _copy(self, seen: dict[str, _File]) -> bool:
        """Copy one state of the folder; whether there was no fault."""
        links = self._folder.with_name(f"{self._folder.name}.copy")
        try:
            shutil.rmtree(links, ignore_errors=True)
            _link(self._folder, seen, links)
            if _state(self._folder) != seen:
                return True  # replaced meanwhile: the next look finds the newer state
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = describe(links, self._provenance, {}, created)
            (links / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2))
            self._place.replace(links)
        except TransferAbandoned:
            return True
        except FileNotFoundError:
            return True  # as above
        except (StorageError, ArtifactError, OSError) as error:
            self._fail(error)
            return False
        finally:
            shutil.rmtree(links, ignore_errors=True)
        if not self._copied:
            self._say(f"checkpoints are copied to {self._place.uri}")
        self._copied = seen
        return True

    def _touch(self) -> None:
        try:
            self._place.touch()
        except StorageError as error:
            self._fail(error)
        except TransferAbandoned:
            return

    def _fail(self, error: Exception) -> None:
        """Say what failed, once: the store may be away for long."""
        if str(error) != self._last_fault:
            self._last_fault = str(error)
            self._say(f"the newest checkpoint is not copied to {self._place.uri}: {error}")


def _is_being_saved(folder: Path) -> bool:
    """Whether a newer state is being written, for which to wait."""
    for draft in _paths_below(folder):
        if draft.suffix != _DRAFT_SUFFIX:
            continue
        try:
            age_s = time.time() - draft.stat().st_mtime
        except FileNotFoundError:
            continue  # it is complete
        if age_s < _SAVED_WITHIN_S:
            return True
    return False


def _paths_below(folder: Path) -> Iterator[Path]:
    """Every file and folder below. A folder that is deleted during the listing counts as empty."""
    for directory, folders, files in os.walk(folder):  # `rglob` raises for such a folder
        yield from (Path(directory, name) for name in (*folders, *files))


def _state(folder: Path) -> dict[str, _File]:
    """The complete files of the folder; drafts are hidden, or have the suffix."""
    found: dict[str, _File] = {}
    for path in _paths_below(folder):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or path.suffix == _DRAFT_SUFFIX:
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # deleted at this moment
        if stat.S_ISREG(status.st_mode):
            found[name.as_posix()] = _File(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _link(folder: Path, names: dict[str, _File], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, target / name)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            shutil.copyfile(folder / name, target / name)
