"""Digests of files and of directories: what two runs compare to see that they agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

UNTRACKED_BY_CONTENT = frozenset({"manifest.json", "run.json", "timings.parquet"})
"""Files that hold measured times, hosts and dates: covered by `integrity`, not by `content`."""

_CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def tree_digest(path: Path) -> str:
    """One digest over a file, or over every file below a folder (names and bytes)."""
    if path.is_file():
        return file_digest(path)
    files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    return _tree_digest((entry.relative_to(path).as_posix(), file_digest(entry)) for entry in files)


def json_digest(value: object) -> str:
    """SHA-256 of the value's canonical JSON (sorted keys, no spaces), in hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def payload_files(directory: Path) -> list[Path]:
    """Every file below `directory` but its manifest, as sorted relative paths."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in found if path.as_posix() != "manifest.json")


def content_digest(file_digests: Mapping[str, str]) -> str:
    """One digest over the files that are deterministic under the seed (names and bytes)."""
    return _tree_digest(
        (name, digest)
        for name, digest in file_digests.items()
        if Path(name).name not in UNTRACKED_BY_CONTENT
    )


def integrity_digest(file_digests: Mapping[str, str]) -> str:
    """One digest over every payload file."""
    return _tree_digest(file_digests.items())


def _tree_digest(entries: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"{name}\t{digest}\n" for name, digest in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()
