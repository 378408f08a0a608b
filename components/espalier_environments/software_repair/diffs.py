r"""Unified diffs, as git writes them: parsed from untrusted text, applied, and made.

Supported are headers `--- a/PATH` and `+++ b/PATH`, new and deleted files, renames, hunks, and "\
No newline at end of file". Binary patches and quoted paths are not supported.

A hunk is applied at its line number, or at the nearest place that has its old lines; context that
does not match is refused, never guessed (patch's "fuzz" is 0).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

_MAX_CHARACTERS = 1_000_000
_MAX_FILES = 200
_MAX_LINE_NUMBER = 10**7
_MAX_COMPARED = 2_000_000
"""Most lines that are compared to find the hunks of a file: a hundred times those of a long one."""
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@.*")
_NOWHERE = "/dev/null"
_NO_NEWLINE = "\\"
_NO_NEWLINE_LINE = "\\ No newline at end of file"


class DiffError(ValueError):
    """Text that is not a diff, or a diff that does not apply."""


@dataclass(frozen=True, slots=True)
class Hunk:
    r"""A change of adjacent lines.

        @@ -3,2 +3,2 @@
         a = 1                old ("a = 1\n", "b = 2\n")
        -b = 2                new ("a = 1\n", "b = 3\n")
        +b = 3                start 3

    Attributes:
        start: number of the first old line, from 1; for an insertion, of the line before it.
        old: the old lines with their line ends.
        new: the new lines.
        text: the hunk as it was written, with its header.
    """

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The changes of one file.

    Attributes:
        old_path: None for a new file.
        new_path: None for a deleted file.
        hunks: empty for a pure rename, or an empty file.
    """

    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...]

    @property
    def text(self) -> str:
        """The hunks as they were written."""
        return "\n".join(hunk.text for hunk in self.hunks)

    @property
    def path(self) -> str:
        """The new path, or the old one of a deleted file."""
        path = self.new_path or self.old_path
        assert path is not None, "a patch has a path"
        return path


def checked_path(path: str) -> str:
    """Return a relative path without `..`, in the form in which a tree stores it.

    Raises:
        DiffError: the path is invalid, or leaves the tree or enters git's folder.
    """
    parts = PurePosixPath(path).parts
    hostile = not parts or path.startswith("/") or ".." in parts or "\\" in path or len(path) > 400
    if hostile or any(not (character.isprintable()) for character in path):
        raise DiffError(f"{path[:80]!r} is no path inside of the repository")
    if any(part.lower() == ".git" for part in parts):
        raise DiffError(f"{path[:80]!r} is inside of git's own folder")
    return str(PurePosixPath(*parts))


def parsed_diff(text: str) -> tuple[FilePatch, ...]:
    """Return the patches of a diff, in order; text before the first one is ignored.

    Raises:
        DiffError: there is no patch, a truncated or malformed one, an invalid path, or a file that
            is changed twice.
    """
    if len(text) > _MAX_CHARACTERS:
        raise DiffError(f"a diff of {len(text)} characters; at most {_MAX_CHARACTERS} are read")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    patches = list(_Reader(lines).patches())
    if not patches:
        raise DiffError("no file is changed: a diff begins with --- a/PATH and +++ b/PATH")
    paths = [path for patch in patches for path in {patch.old_path, patch.new_path} if path]
    if len(set(paths)) < len(paths):
        raise DiffError("a file is changed twice")
    return tuple(patches)


class _Reader:
    """Parses lines from the first to the last."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def patches(self) -> Iterator[FilePatch]:
        found = 0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                self._at += 1
                patch = self._extended()
            elif line.startswith("--- ") and self._ahead(1).startswith("+++ "):
                patch = self._plain()
            else:
                self._at += 1
                continue
            if patch is not None:
                found += 1
                if found > _MAX_FILES:
                    raise DiffError(f"more than {_MAX_FILES} files are changed")
                yield patch

    def _ahead(self, count: int) -> str:
        place = self._at + count
        return self._lines[place] if place < len(self._lines) else ""

    def _extended(self) -> FilePatch | None:
        """Parse what follows `diff --git`: git's own headers, then a plain patch or nothing."""
        said: dict[str, str] = {}
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith(("GIT binary patch", "Binary files ")):
                raise DiffError("a binary patch is not read")
            if line.startswith("diff --git ") or line.startswith("--- "):
                break
            for key in ("rename from ", "rename to ", "new file ", "deleted file "):
                if line.startswith(key):
                    said[key] = line.removeprefix(key)
            if line.startswith("@@ "):
                raise DiffError("a hunk before --- and +++")
            self._at += 1
        if self._ahead(0).startswith("--- "):
            return self._plain()
        if "rename from " in said and "rename to " in said:
            old, new = (checked_path(said[key]) for key in ("rename from ", "rename to "))
            return FilePatch(old, new, ())
        return None  # a change of mode, or an empty file: irrelevant for tests

    def _plain(self) -> FilePatch:
        old = _path_of(self._ahead(0)[4:], "a/")
        if not self._ahead(1).startswith("+++ "):
            raise DiffError("no +++ line behind ---")
        new = _path_of(self._ahead(1)[4:], "b/")
        if old is None and new is None:
            raise DiffError("a patch of no file")
        self._at += 2
        hunks: list[Hunk] = []
        while self._ahead(0).startswith("@@"):
            hunks.append(self._hunk())
        if not hunks:
            raise DiffError(f"no hunk behind +++ {new}")
        return FilePatch(old, new, tuple(hunks))

    def _hunk(self) -> Hunk:
        head = _HUNK.fullmatch(self._lines[self._at])
        if head is None:
            raise DiffError(f"no head of a hunk: {self._lines[self._at][:60]!r}")
        start, num_old, _, num_new = (1 if part is None else int(part) for part in head.groups())
        if start > _MAX_LINE_NUMBER:
            raise DiffError(f"line {start} of a file")
        begun = self._at
        self._at += 1
        sides: tuple[list[str], list[str]] = ([], [])
        old, new = sides
        while len(old) < num_old or len(new) < num_new:
            if self._at >= len(self._lines):
                raise DiffError("a hunk is cut off")
            line = self._lines[self._at]
            self._at += 1
            # editors strip the space of an empty context line
            written = {" ": sides, "": sides, "-": (old,), "+": (new,)}.get(line[:1])
            if written is None:
                raise DiffError(f"no line of a hunk: {line[:60]!r}")
            ends_file = self._ahead(0).startswith(_NO_NEWLINE)
            self._at += ends_file
            for side in written:
                side.append(line[1:] if ends_file else f"{line[1:]}\n")
        if len(old) != num_old or len(new) != num_new:
            raise DiffError("a hunk has other lines than its head says")
        if any(not line.endswith("\n") for side in sides for line in side[:-1]):
            raise DiffError("a line without its end in the middle of a hunk")
        return Hunk(start, tuple(old), tuple(new), "\n".join(self._lines[begun : self._at]))


def _path_of(text: str, prefix: str) -> str | None:
    path = text.split("\t", 1)[0].rstrip("\r ")
    if path == _NOWHERE:
        return None
    if path.startswith('"'):
        raise DiffError(f"a quoted path is not read: {path[:80]}")
    return checked_path(path.removeprefix(prefix))


def applied(content: str, patch: FilePatch) -> str:
    """Return the file's content after the patch.

    Args:
        content: the content before; empty for a new file.
        patch: the patch of that file.

    Raises:
        DiffError: the old lines of a hunk are missing.
    """
    search = _Search(patch.path, _split(content))
    written: list[str] = []
    shift, done = 0, 0
    for number, hunk in enumerate(patch.hunks, start=1):
        expected = hunk.start - (1 if hunk.old else 0) + shift
        place = search.place_of(hunk.old, expected, done)
        if place is None:
            raise DiffError(f"{patch.path}: the old lines of hunk {number} are not there")
        written += (*search.lines[done:place], *hunk.new)
        shift += place - expected
        done = place + len(hunk.old)
    written += search.lines[done:]
    if any(not line.endswith("\n") for line in written[:-1]):
        raise DiffError(f"{patch.path}: something would stand behind the end of the file")
    return "".join(written)


def _split(content: str) -> list[str]:
    """Return lines with their ends; only a newline character ends a line."""
    parts = content.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


class _Search:
    """Finds the old lines of hunks in a file, within a limit for all of them together."""

    def __init__(self, path: str, lines: list[str]) -> None:
        self.lines = lines
        self._path = path
        self._left = _MAX_COMPARED

    def place_of(self, old: tuple[str, ...], expected: int, first: int) -> int | None:
        """Return the position of `old` nearest to `expected`, not before `first`; None if missing.

        Raises:
            DiffError: all hunks so far took too many comparisons.
        """
        last = len(self.lines) - len(old)
        if last < first:
            return None
        if not old:
            return min(max(expected, first), len(self.lines))
        places = _outward(expected, first, last)
        return next((place for place in places if self._fits(old, place)), None)

    def _fits(self, old: tuple[str, ...], place: int) -> bool:
        self._left -= 1
        if self._left < 0:
            raise DiffError(f"{self._path}: its hunks are too many for a file of that size")
        if self.lines[place] != old[0]:
            return False
        self._left -= len(old)
        return tuple(self.lines[place : place + len(old)]) == old


def _outward(expected: int, first: int, last: int) -> Iterator[int]:
    """Yield the places from `first` to `last`, the nearest to `expected` first."""
    below, above = min(expected, last), max(expected + 1, first)
    while below >= first or above <= last:
        if above > last or (below >= first and expected - below <= above - expected):
            yield below
            below -= 1
        else:
            yield above
            above += 1


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the diff between two trees, as git writes it; empty for equal trees."""
    parts = [
        _file_diff(path, before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]
    return "".join(parts)


def _file_diff(path: str, old: str | None, new: str | None) -> str:
    head = f"diff --git a/{path} b/{path}\n"
    if old is None:
        head += "new file mode 100644\n"
    elif new is None:
        head += "deleted file mode 100644\n"
    lines = difflib.unified_diff(
        _split(old or ""),
        _split(new or ""),
        fromfile=f"a/{path}" if old is not None else _NOWHERE,
        tofile=f"b/{path}" if new is not None else _NOWHERE,
    )
    return head + "".join(
        line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE_LINE}\n" for line in lines
    )
