"""A scan for anything that gives a fix away: history, leftovers, lines of the fix or its tests.

This module's source is also sent into sandboxes, so it imports only the standard library. Lines are
searched for by digests of adjacent pairs, so that a scanned sandbox does not learn the fix.
"""

from __future__ import annotations

import bz2
import fnmatch
import hashlib
import io
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator

MAX_READ = 4_000_000
"""Most bytes of a file that are read, and of each file packed in it."""
_MAX_MEMBERS = 2000

_HISTORY = (
    (".git", "git's folder"),
    (".hg", "a Mercurial repository"),
    (".svn", "a Subversion folder"),
    (".bzr", "a Bazaar repository"),
)
_LEFTOVERS = (
    ("*.orig", "a file as it was before a patch"),
    ("*.rej", "a hunk that did not apply"),
    ("*.patch", "a patch"),
    ("*.diff", "a patch"),
    ("*.pyc", "compiled sources"),
    ("__pycache__", "compiled sources"),
    (".pytest_cache", "results of tests"),
    ("*.egg-info", "an installed version"),
    ("*.dist-info", "an installed version"),
    ("*.whl", "a package"),
)
"""Patterns for the repository's own folder; elsewhere such files belong to an installation."""
_REFS = ("packed-refs", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD")
_OBJECT = re.compile(r"(?:^|/)objects/(?:[0-9a-f]{2}/[0-9a-f]{38,62}|pack/|info/packs)")
_LOGS = re.compile(r"(?:^|/)logs/(?:HEAD|refs/)")
_PIP = re.compile(r"(?:^|/)(?:\.cache/pip|\.cache/uv|pip/http(?:-v2)?|pip/wheels)/")
_MAGIC = (
    (b"PACK\x00\x00\x00", "a pack of git objects"),
    (b"\xfftOc\x00\x00\x00", "an index of git objects"),
    (b"# v2 git bundle", "a git bundle"),
    (b"# v3 git bundle", "a git bundle"),
)
_LOOSE = re.compile(rb"(?:blob|tree|commit|tag) \d+\x00")


def normalized(line: str) -> str:
    """Return a line without indentation, and without its mark in a diff."""
    stripped = line.strip()
    while stripped[:1] in ("+", "-", ">", "<"):
        stripped = stripped[1:].strip()
    return stripped


def pair_digests(text: str) -> Iterator[str]:
    """Yield a digest of every pair of adjacent non-blank lines."""
    before = ""
    for line in text.split("\n"):
        stripped = normalized(line)
        if stripped:
            if before:
                yield hashlib.sha256(f"{before}\n{stripped}".encode(errors="replace")).hexdigest()
            before = stripped


def name_leak(path: str, *, own: bool) -> str:
    """Return what the name of a file gives away, or "".

    Args:
        path: path of the file.
        own: whether the file belongs to the repository.
    """
    parts = path.split("/")
    for name, meaning in _HISTORY:
        if name in parts:
            return meaning
    if parts[-1] in _REFS or _OBJECT.search(path) or _LOGS.search(path):
        return "git objects or references"
    if _PIP.search(path):
        return "a cache of packages"
    if own:
        for pattern, meaning in _LEFTOVERS:
            if any(fnmatch.fnmatchcase(part, pattern) for part in parts):
                return meaning
    return ""


def content_leak(content: bytes, pairs: Collection[str], *, depth: int = 2) -> str:
    """Return what the content of a file gives away, or ""."""
    for magic, meaning in _MAGIC:
        if content.startswith(magic):
            return meaning
    for inner in _unpacked(content) if depth else ():
        if _LOOSE.match(inner):
            return "a git object"
        if found := content_leak(inner, pairs, depth=depth - 1):
            return f"{found}, packed"
    if pairs:
        text = content.decode("utf-8", "replace")
        if any(digest in pairs for digest in pair_digests(text)):
            return "lines of the fix or of its hidden tests"
    return ""


def _unpacked(content: bytes) -> Iterator[bytes]:
    """Yield what is packed in a file, at most `MAX_READ` bytes each."""
    try:
        for magic, opener in _OPENERS:
            if content.startswith(magic):
                yield from opener(content)
                return
        if content[257:262] == b"ustar":
            yield from _tarred(content)
    except (
        zlib.error, OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError,
        RuntimeError, ValueError,
    ):  # fmt: skip
        return  # damaged or encrypted: nobody else can read its text either


def _zipped(content: bytes) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for member in packed.infolist()[:_MAX_MEMBERS]:
            with packed.open(member) as stream:
                yield stream.read(MAX_READ)


def _tarred(content: bytes) -> Iterator[bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        for member in packed.getmembers()[:_MAX_MEMBERS]:
            if member.isfile() and (stream := packed.extractfile(member)) is not None:
                yield stream.read(MAX_READ)


def _inflated(content: bytes) -> Iterator[bytes]:
    """Decompress zlib or gzip, whichever the header says."""
    yield zlib.decompressobj(47).decompress(content, MAX_READ)


def _bunzipped(content: bytes) -> Iterator[bytes]:
    yield bz2.BZ2Decompressor().decompress(content, MAX_READ)


def _unxzed(content: bytes) -> Iterator[bytes]:
    yield lzma.LZMADecompressor().decompress(content, MAX_READ)


_OPENERS: tuple[tuple[bytes, Callable[[bytes], Iterator[bytes]]], ...] = (
    (b"\x78", _inflated),
    (b"\x1f\x8b", _inflated),
    (b"BZh", _bunzipped),
    (b"\xfd7zXZ", _unxzed),
    (b"PK\x03\x04", _zipped),
)
"""First bytes of packed content -> the function that unpacks it."""


def is_ignored(path: str, ignored: Collection[str]) -> bool:
    """Return whether a path matches one of the ignored patterns."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in ignored)


def scanned(
    files: Iterable[tuple[str, bytes]], pairs: Collection[str], *, own: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield path and meaning of everything among `files` that gives a fix away."""
    for path, content in files:
        if found := name_leak(path, own=own) or content_leak(content[:MAX_READ], pairs):
            yield path, found


_TEXTS = (".py", ".txt", ".md", ".rst", ".log", ".json", ".patch", ".diff", ".orig", ".rej")
_PACKED = (".gz", ".tgz", ".zip", ".whl", ".tar", ".bz2", ".xz", ".pack", ".bundle")


def _is_read(path: str, beginnings: tuple[str, ...]) -> bool:
    """Return whether a file's content is read: only where sources or git objects could be."""
    name = os.path.basename(path)
    if "/lib/python3" in path:  # a Python installation, which would take minutes
        return False
    readable = "." not in name or name.endswith((*_TEXTS, *_PACKED))
    return readable and path.startswith(beginnings) and os.path.isfile(path)


def scan_folder(
    folder: str, skipped: Collection[str], pairs: Collection[str], read: Collection[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Scan the entries of one folder of this machine.

    Args:
        folder: path of the folder.
        skipped: folders that are not entered, such as the kernel's.
        pairs: digests of the lines that must not be found.
        read: path prefixes of files whose content is read; of other files only the name is used.

    Returns:
        The subfolders to enter, sorted, and path and meaning of what gives a fix away.
    """
    below: list[str] = []
    leaks: list[tuple[str, str]] = []
    for entry in _entries(folder):
        path = os.path.join(folder, entry.name)
        is_folder = _is_folder(entry)
        if is_folder and path in skipped:
            continue
        if is_folder:
            below.append(path)
        found = name_leak(path, own=False)
        if not found and not is_folder and _is_read(path, tuple(read)):
            found = _file_leak(path, pairs)
        if found:
            leaks.append((path, found))
    return below, leaks


def folders_from(position: str, skipped: Collection[str]) -> list[str]:
    """Return the folders still to visit by a depth-first scan that has come to `position`.

    The last one is visited next. A scan in parts therefore only needs to remember its position.
    """
    pending: list[str] = []
    folder = "/"
    for part in filter(None, position.split("/")):
        after = [e.name for e in _entries(folder) if e.name > part and _is_folder(e)]
        paths = [os.path.join(folder, name) for name in reversed(after)]
        pending += [path for path in paths if path not in skipped]
        folder = os.path.join(folder, part)
    return [*pending, folder]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return sorted(listed, key=lambda entry: entry.name)
    except OSError:  # deleted, or not accessible in the sandbox
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # is_dir may need a stat call, which may fail
        return False


def _file_leak(path: str, pairs: Collection[str]) -> str:
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_READ)
    except OSError:
        return ""
    return content_leak(content, pairs)
