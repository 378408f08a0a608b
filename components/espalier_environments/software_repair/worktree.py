"""The files of an episode: a snapshot, and the policy's changes to it."""

from __future__ import annotations

from collections.abc import Mapping

from espalier_environments.software_repair.diffs import (
    DiffError,
    FilePatch,
    applied,
    checked_path,
    diff_of,
)

MAX_TREE_CHARACTERS = 24_000_000
"""Most characters that a policy may add or change: no sandbox would hold more."""


class Worktree:
    """A snapshot with changes on top, by path.

    Text is UTF-8 with other bytes as surrogates (`surrogateescape`), so that every file can be
    stored unchanged.
    """

    def __init__(self, snapshot: Mapping[str, str]) -> None:
        self._snapshot = snapshot
        self._changed: dict[str, str | None] = {}
        """Path -> new content; None if the file was deleted."""
        self._characters = 0

    @property
    def changed(self) -> Mapping[str, str | None]:
        """Path -> content of every file that differs from the snapshot; None if deleted."""
        return {
            path: content
            for path, content in self._changed.items()
            if content != self._snapshot.get(path)
        }

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        there = {*self._snapshot, *self._changed}
        return sorted(path for path in there if self.read(path) is not None)

    def read(self, path: str) -> str | None:
        """Return the content of a file; None if it does not exist."""
        return self._changed[path] if path in self._changed else self._snapshot.get(path)

    def write(self, path: str, content: str | None) -> None:
        """Set or delete a file.

        Raises:
            DiffError: the path is invalid or runs through a file, or the content is not text or
                too large.
        """
        path = checked_path(path)
        try:
            (content or "").encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise DiffError(f"{path}: half of a surrogate pair is no text") from error
        before = self._changed.get(path) or ""
        self._characters += len(content or "") - len(before)
        if self._characters > MAX_TREE_CHARACTERS:
            self._characters -= len(content or "") - len(before)
            raise DiffError(f"the changed files are larger than {MAX_TREE_CHARACTERS} characters")
        if content is not None and self.read(path) is None:
            self._refuse_file_as_folder(path)
        self._changed[path] = content

    def _refuse_file_as_folder(self, path: str) -> None:
        parts = path.split("/")
        if any(self.read("/".join(parts[:n])) is not None for n in range(1, len(parts))):
            raise DiffError(f"{path}: a file stands where its folder would be")
        if any(
            other.startswith(f"{path}/") and self.read(other) is not None for other in self.paths()
        ):
            raise DiffError(f"{path} is a folder")

    def apply(self, patches: tuple[FilePatch, ...]) -> None:
        """Apply the patches of a diff; apply none if one does not fit.

        Raises:
            DiffError: a patch does not apply.
        """
        wanted: list[tuple[str, str | None]] = []
        for patch in patches:
            before = "" if patch.old_path is None else self.read(patch.old_path)
            if before is None:
                raise DiffError(f"{patch.old_path}: there is no such file")
            if patch.old_path is None and self.read(patch.path) is not None:
                raise DiffError(f"{patch.path} exists already")
            after = applied(before, patch)
            if patch.new_path is None and after:
                raise DiffError(f"{patch.old_path}: lines would be left of a deleted file")
            if patch.old_path not in {None, patch.new_path}:
                wanted.append((str(patch.old_path), None))
            if patch.new_path is not None:
                wanted.append((patch.new_path, after))
        for path, content in wanted:
            self.write(path, content)

    def diff(self) -> str:
        """Return the changes as a unified diff."""
        before = {path: self._snapshot.get(path) for path in self.changed}
        after = self.changed
        return diff_of(
            {path: content for path, content in before.items() if content is not None},
            {path: content for path, content in after.items() if content is not None},
        )
