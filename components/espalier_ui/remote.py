"""A run in S3, as a folder that the viewer reads: of attempts only the bytes that are looked at.

    manifests, figures, notices, tasks, results, indexes    whole, checked by their digests
    streams/**/episodes-*.jsonl                             a file with holes, filled block by block
    weights, and whatever is large                          not at all

Contents have names by their digests, as in S3, and are linked into the folder of each artifact. A
block cannot be checked: a digest is that of a whole file.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath

from espalier.chain import CHAIN
from espalier.records import MANIFEST_NAME, Manifest, StorageError, replace_directory
from espalier.storage.bucket import S3Location
from espalier.storage.location import parsed_address
from espalier.storage.settings import s3_settings

_AGAIN_S = 15.0
"""Seconds between two looks for artifacts that were published meanwhile."""
_LARGEST_WHOLE = 64 << 20
_BLOCK = 256 << 10
_BLOCKS_AT_ONCE = 32
_ROOT_FILES = ("profile.json", "run.json", "timings.json", "summary.json")
_ATTEMPTS = re.compile(r"streams/([a-z_]+/)?episodes-\d{6}\.jsonl")
_READ_WHOLE = (".json", ".jsonl", ".index", ".parquet", ".txt")


class RemoteRun:
    """One run below s3://bucket/prefix; reading is safe from every thread."""

    def __init__(self, uri: str, cache: Path, environment: Mapping[str, str]) -> None:
        """Name it; nothing is requested yet.

        Args:
            uri: s3://bucket/prefix, below which the artifacts of its stages lie.
            cache: the viewer's folder for this run.
            environment: S3 endpoint and credentials, as for `espalier.storage`.

        Raises:
            StorageError: the URI has another form, or there are no credentials.
        """
        settings, (bucket, prefix) = s3_settings(environment), parsed_address(uri)
        self.uri = uri
        self.folder = cache / prefix.rpartition("/")[2]
        self._contents = cache / "contents"
        self._root = S3Location(settings, bucket, prefix)
        self._places = {
            stage.output: S3Location(settings, bucket, f"{prefix}/{stage.output}")
            for stage in CHAIN
        }
        self._manifests: dict[str, Manifest] = {}
        self._lock = threading.Lock()
        self._looks_at_s = 0.0

    def refresh(self) -> None:
        """Bring what was published since the last look, except attempts.

        Raises:
            ArtifactError: a file of an artifact is lost or damaged.
            StorageError: the server refuses or is unreachable, or the cache cannot be written.
        """
        with self._lock:
            if time.monotonic() < self._looks_at_s:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            self._contents.mkdir(exist_ok=True)
            for name in _ROOT_FILES:
                content = self._root.read(name, most=_LARGEST_WHOLE)
                if content is not None:
                    (self.folder / name).write_bytes(content)
            for output, place in self._places.items():
                manifest = place.manifest()
                if manifest is not None and manifest != self._manifests.get(output):
                    self._manifests[output] = manifest
                    self._lay_out(output)
            self._looks_at_s = time.monotonic() + _AGAIN_S

    def bring(self, path: Path, start: int, end: int) -> None:
        """Bring bytes `start` to `end` of a file of attempts, as far as they are not there.

        Raises:
            ArtifactError: the file is no longer in S3.
            StorageError: the server refuses or is unreachable.
        """
        output, *parts = path.relative_to(self.folder).parts
        name = PurePosixPath(*parts).as_posix()
        with self._lock:
            if name in self._manifests[output].files and _ATTEMPTS.fullmatch(name):
                self._fill(output, name, start, end)

    def _lay_out(self, output: str) -> None:
        """Make the folder of an artifact, with the files that the viewer reads."""
        manifest, draft = self._manifests[output], self.folder / f".{output}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for name, digest in manifest.files.items():
            content, size = self._contents / digest, manifest.sizes.get(name)
            if _ATTEMPTS.fullmatch(name) and size:
                if not content.exists():
                    with content.open("wb") as stream:
                        stream.truncate(size)
                self._fill(output, name, 0, 1)  # a segment is known by its beginning
            elif size is not None and size <= _LARGEST_WHOLE and _is_read(name):
                self._places[output].fetch_file(manifest, name, content)
                self._date(output, content)
            else:
                continue
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(content, draft / name)
        (draft / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
        replace_directory(draft, self.folder / output)

    def _fill(self, output: str, name: str, start: int, end: int) -> None:
        manifest = self._manifests[output]
        size, content = manifest.sizes[name], self._contents / manifest.files[name]
        marks = content.with_name(f"{content.name}.blocks")
        if not marks.exists():
            marks.write_bytes(bytes(-(-size // _BLOCK)))
        known = marks.read_bytes()
        wanted = range(max(0, start) // _BLOCK, -(-min(end, size) // _BLOCK))
        missing = [block for block in wanted if not known[block]]
        for blocks in _runs(missing):
            low, high = blocks[0] * _BLOCK, min(size, (blocks[-1] + 1) * _BLOCK)
            found = self._places[output].read_range(manifest, name, low, high)
            _write_at(content, low, found)
            # after the bytes that it speaks of: a killed viewer brings them again
            _write_at(marks, blocks[0], b"\1" * len(blocks))
        self._date(output, content)

    def _date(self, output: str, path: Path) -> None:
        """Give a file the time at which it was published: by it a run counts as running."""
        try:
            made = datetime.fromisoformat(self._manifests[output].created).timestamp()
        except ValueError as error:
            raise StorageError(f"{self.uri}/{output}: no time in its manifest ({error})") from error
        os.utime(path, (made, made))


def _runs(blocks: Sequence[int]) -> list[list[int]]:
    """Return neighbouring blocks together: each list comes by one request."""
    found: list[list[int]] = []
    for block in blocks:
        if found and found[-1][-1] + 1 == block and len(found[-1]) < _BLOCKS_AT_ONCE:
            found[-1].append(block)
        else:
            found.append([block])
    return found


def _is_read(name: str) -> bool:
    """Whether the viewer reads a file whole; of a policy it reads the tokenizer alone."""
    path = PurePosixPath(name)
    is_policy = path.parts[0] == "policy"
    return path.name == "tokenizer.json" if is_policy else path.suffix in _READ_WHOLE


def _write_at(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(place)
        stream.write(content)
