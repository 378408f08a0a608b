"""Streams: JSON lines that a running stage appends to, in numbered segments with byte offsets.

    streams/episodes-000000.jsonl     a finished segment, which is never changed again
    streams/episodes-000000.index     a line per record: [offset, bytes, step, summary]
    streams/.episodes-000001.jsonl    the segment that is being written, and its index

One process writes a stream. A segment ends when it is large, and before every checkpoint: S3 cannot
append, and the copy of a checkpoint there holds only files without a leading dot. Each record is an
object with its `step`, and steps never fall, so that a resumed run drops the records after its
checkpoint and writes them again. An index only saves reading: what it lacks is read from the
records. The last line of a killed writer may be torn; readers stop before it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from espalier.records.errors import ArtifactError
from espalier.records.whole_file import whole_file

STREAMS_FOLDER = "streams"
"""Folder of streams in a stage's work directory, and in the artifact that it publishes."""
SEGMENT_BYTES = 64 << 20
"""Size from which a segment ends: what an upload to S3 sends again after a fault."""
_NAMES = "streams.json"
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_NAME = re.compile(r"(\.?)([a-z_]+)-(\d{6})\.jsonl")
_LARGEST_COUNT = 1 << 53
"""Bound of steps and places: what every reader of JSON has exactly."""
_LONGEST_LINE = 256 << 20
"""Bytes of the longest line that is read: a damaged file may have no line break at all."""


class StreamRecord(NamedTuple):
    """A record to append."""

    step: int
    content: Mapping[str, Any]
    """Further fields of its JSON object, besides `step`."""
    summary: Mapping[str, Any] | None = None
    """What lists show of it; goes to the index alone."""


class IndexEntry(NamedTuple):
    """Place of a record in its segment."""

    offset: int
    num_bytes: int
    """Including its line break."""
    step: int
    summary: dict[str, Any] | None


class Segment(NamedTuple):
    """A file of a stream."""

    path: Path
    stream: str
    number: int
    is_finished: bool

    @property
    def index_path(self) -> Path:
        """The file with its index, which may be missing."""
        own = self.path.with_suffix(".index")
        # a segment gets its final name after its index
        return own if own.exists() else own.with_name(own.name.removeprefix("."))


def segments(folder: Path, stream: str) -> list[Segment]:
    """Return the segments of a stream in order; [] without any."""
    found: dict[int, Segment] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            # a writer makes no symbolic link: one may lead to any file of this machine
            if match is None or match[2] != stream or path.is_symlink():
                continue
            segment = Segment(path, stream, int(match[3]), is_finished=not match[1])
            # both are there for a moment while one is renamed, or for good after a copy
            if segment.number not in found or segment.is_finished:
                found[segment.number] = segment
    return [found[number] for number in sorted(found)]


def read_index(segment: Segment, start: int = 0) -> Iterator[IndexEntry]:
    """Yield the places of the whole records of a segment, from byte `start` of it on.

    An entry of the index counts if it begins where the one before it ends, and lies in the file;
    after the last such entry the records themselves are read. Those have no summary.

    Args:
        segment: the segment; a missing file has no records.
        start: where a record begins.
    """
    try:
        with segment.path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            place = 0
            for entry in _written_entries(segment.index_path):
                if entry.offset != place or place + entry.num_bytes > size:
                    break
                place += entry.num_bytes
                if entry.offset >= start:
                    yield entry
            yield from _scanned(stream, max(place, start), size)
    except FileNotFoundError:
        return


def read_line(segment: Segment, offset: int) -> dict[str, Any] | None:
    """Return the record that begins at byte `offset`; None if none begins there."""
    try:
        with segment.path.open("rb") as stream:
            if not 0 <= offset < os.fstat(stream.fileno()).st_size:
                return None
            stream.seek(max(0, offset - 1))
            if offset and stream.read(1) != b"\n":
                return None
            return _record(stream.readline(_LONGEST_LINE))
    except FileNotFoundError:
        return None


def read_stream(folder: Path, stream: str, after: int = -1) -> Iterator[dict[str, Any]]:
    """Yield the records of a stream with a step above `after`, in order."""
    for segment in segments(folder, stream):
        entries = [entry for entry in read_index(segment) if entry.step > after]
        if entries:
            with suppress(FileNotFoundError), segment.path.open("rb") as opened:
                for entry in entries:
                    opened.seek(entry.offset)
                    record = _record(opened.read(entry.num_bytes))
                    if record is not None:
                        yield record


class StreamWriter:
    """Appends to one stream; a record is with the operating system when `append` returns."""

    def __init__(self, folder: Path, stream: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Set where to write; nothing is written before `keep_until`.

        Args:
            folder: folder of the stream, made when it is needed.
            stream: name of the stream, lower-case letters.
            segment_bytes: size from which a segment ends.
        """
        self._folder, self._stream, self._segment_bytes = folder, stream, segment_bytes
        self._number = 0
        self._place = 0

    def keep_until(self, step: int) -> int:
        """Begin to write: drop the records after `step`, and whatever is torn.

        Returns:
            The step of the last record that is kept; -1 without any.

        Raises:
            ArtifactError: the folder cannot be written.
        """
        self._number, self._place = 0, 0
        last = -1
        with _writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            found = segments(self._folder, self._stream)
            for number, segment in enumerate(found):
                entries = list(read_index(segment))
                kept = [entry for entry in entries if entry.step <= step]
                end = kept[-1].offset + kept[-1].num_bytes if kept else 0
                last = kept[-1].step if kept else last
                if segment.is_finished and end == segment.path.stat().st_size:
                    self._number = segment.number + 1
                    continue
                self._number, self._place = segment.number, end
                self._open_again(segment, kept, end)
                for later in found[number + 1 :]:
                    _remove(later)
                break
        return last

    def append(self, records: Sequence[StreamRecord]) -> None:
        """Add records, and end the segment if it is large.

        Raises:
            ArtifactError: the disk is full, or the folder cannot be written.
        """
        if not records:
            return
        lines = [_line({"step": record.step, **record.content}) for record in records]
        entries: list[bytes] = []
        place = self._place
        for record, line in zip(records, lines, strict=True):
            summary = None if record.summary is None else dict(record.summary)
            entries.append(_line([place, len(line), record.step, summary]))
            place += len(line)
        path = self._active
        with _writing(self._folder):
            for file, written in ((path, lines), (path.with_suffix(".index"), entries)):
                with file.open("ab") as stream:
                    stream.write(b"".join(written))
        self._place = place
        if place >= self._segment_bytes:
            self.finish_segment()

    def finish_segment(self) -> None:
        """End the segment, if it has a record: it is on disk, and has its final name."""
        if not self._place:
            return
        path = self._active
        with _writing(self._folder):
            # the index first: records whose index is missing are read whole
            for file in (path.with_suffix(".index"), path):
                with file.open("rb+") as stream:
                    os.fsync(stream.fileno())
                file.replace(file.with_name(file.name.removeprefix(".")))
        self._number, self._place = self._number + 1, 0

    @property
    def _active(self) -> Path:
        return self._folder / f".{self._stream}-{self._number:06}.jsonl"

    def _open_again(self, segment: Segment, kept: Sequence[IndexEntry], end: int) -> None:
        """Continue a segment after its first `end` bytes, and drop the rest.

        Its bytes are copied: a copy in S3 that is under way has a link to the former file.
        """
        with segment.path.open("rb") as stream:
            content = stream.read(end)
        lines = b"".join(_line(list(entry)) for entry in kept)
        active = self._active
        for path, written in ((active.with_suffix(".index"), lines), (active, content)):
            with whole_file(path) as draft:
                draft.write_bytes(written)
        if segment.is_finished:
            _remove(segment)


def link_streams(source: Path, target: Path) -> None:
    """Link the finished segments of all streams in `source` into `target`, or copy them."""
    for path in sorted(source.glob("[!.]*")):
        target.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target / path.name)
        except OSError:  # a file system without links
            (target / path.name).write_bytes(path.read_bytes())


def name_streams(work: Path, folders: Mapping[str, Path]) -> None:
    """Write which of the folders in a work directory holds whose streams.

    Raises:
        ArtifactError: the directory cannot be written.
    """
    with whole_file(work / _NAMES) as draft:
        draft.write_text(json.dumps({name: one.name for name, one in folders.items()}))


def named_streams(work: Path) -> dict[str, Path]:
    """Return the folders that `name_streams` has named; {} without any."""
    try:
        found = json.loads((work / _NAMES).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    named = found.items() if isinstance(found, dict) else ()
    # the file of a run of somebody else's leads nowhere else
    return {
        name: work / folder
        for name, folder in named
        if isinstance(folder, str) and _FOLDER.fullmatch(folder)
    }


def _remove(segment: Segment) -> None:
    for path in (segment.path, segment.index_path):
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Report an OSError as an ArtifactError."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"{folder}: cannot be written ({error.strerror or error}). Free space, mend the "
            "folder's rights or choose another --out, and run the same command again"
        ) from error


def _line(value: object) -> bytes:
    # a lone surrogate, which a model or a program may emit, has no UTF-8 encoding
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a whole line; None for a torn or damaged one."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_count(found.get("step")):
        return None
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT


def _written_entries(path: Path) -> Iterator[IndexEntry]:
    """Yield the entries of an index up to its first line that is none."""
    if path.is_symlink():
        return
    try:
        with path.open("rb") as stream:
            while line := stream.readline(_LONGEST_LINE):
                entry = _entry(line)
                if entry is None:
                    return
                yield entry
    except FileNotFoundError:
        return


def _entry(line: bytes) -> IndexEntry | None:
    if not line.endswith(b"\n"):
        return None
    try:
        offset, num_bytes, step, summary = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    counts = _is_count(offset) and _is_count(num_bytes) and _is_count(step)
    if not counts or not num_bytes or not (summary is None or isinstance(summary, dict)):
        return None
    return IndexEntry(offset, num_bytes, step, summary)


def _scanned(stream: BinaryIO, place: int, size: int) -> Iterator[IndexEntry]:
    """Yield the places of records without an index, up to the first torn or damaged one."""
    stream.seek(place)
    while place < size:
        line = stream.readline(_LONGEST_LINE)
        record = _record(line)
        if record is None:
            return
        yield IndexEntry(place, len(line), record["step"], None)
        place += len(line)
