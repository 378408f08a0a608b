"""GorillaFileSystem: folders and files, and one of the folders as the current one.

As upstream, a copied folder shares its files with the original, and the subfolders of a moved
folder keep their old parent. Shared folders can make a cycle, or a tree that doubles with every
copy: whatever would leave a folder inside of itself, or a tree beyond the limits below, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, cast

from espalier.records import DataError
from espalier_environments.function_calling.states.api import Api, Fields, Reply

_FORBIDDEN = frozenset('|/\\?%*:"><')
_UNITS = ("B", "KB", "MB", "GB", "TB")
_MAX_DEPTH = 32
"""Deepest nesting of folders in a configuration."""
_MAX_LEVELS = 64
"""Deepest nesting of folders that calls may make."""
_MAX_CHARACTERS = 1_000_000
"""Most characters of all paths and texts: each state is kept, and compared with the gold one."""


class File:
    """A file's text."""

    def __init__(self, content: str) -> None:
        self.content = content


class Extent(NamedTuple):
    """How far a tree reaches, counting what is shared wherever it is seen."""

    levels: int
    entries: int
    characters: int
    """Characters of all paths and texts."""


class Folder:
    """A folder, and the folder it was created in."""

    def __init__(self, name: str, parent: Folder | None) -> None:
        self.name = name
        self.parent = parent
        self.contents: dict[str, File | Folder] = {}

    def add(self, name: str, entry: File | Folder) -> None:
        """Add a new entry.

        Raises:
            ValueError: the name exists.
        """
        if name in self.contents:
            raise ValueError(f"{name} exists in {self.name}")
        self.contents[name] = entry

    def extent(self, known: dict[int, Extent | None]) -> Extent:
        """Return how far the tree below reaches; shared folders are measured once, by `known`.

        Raises:
            ValueError: a folder is inside of itself, or too deep.
        """
        place = id(self.contents)
        if place in known:
            if (found := known[place]) is None:
                raise ValueError("a folder cannot be inside of itself")
            return found
        known[place] = None
        entries = characters = levels = 0
        for name, entry in self.contents.items():
            if isinstance(entry, File):
                # a call may give a file anything as its text
                is_text = isinstance(entry.content, str)  # pyright: ignore[reportUnnecessaryIsInstance]
                below = Extent(0, 0, len(entry.content) if is_text else 0)
            else:
                below = entry.extent(known)
            entries += 1 + below.entries
            characters += (1 + len(name)) * (1 + below.entries) + below.characters
            levels = max(levels, 1 + below.levels)
        if levels > _MAX_LEVELS:
            raise ValueError(f"folders of more than {_MAX_LEVELS} levels")
        known[place] = extent = Extent(levels, entries, characters)
        return extent

    def frozen(self) -> dict[str, Any]:
        """Return name and contents, by which folders are compared."""
        return {
            "name": self.name,
            "contents": {
                name: entry.content if isinstance(entry, File) else entry.frozen()
                for name, entry in self.contents.items()
            },
        }


class GorillaFileSystem(Api):
    """BFCL's simulated file system."""

    _FIELDS: ClassVar[Fields] = {"root": (dict,)}

    def _begin(self, config: dict[str, Any]) -> None:
        self._root = Folder("/", None)
        if "root" in config:
            root = cast("dict[str, Any]", config["root"])
            if not root:
                raise DataError("GorillaFileSystem.root: names no folder")
            name, content = next(iter(root.items()))
            self._root = Folder(name, None)
            _fill(self._root, content, depth=0)
        self._current = self._root

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the whole tree."""
        return {"root": self._root.frozen()}

    def pwd(self) -> Reply:
        """Path of the current folder."""
        names: list[str] = []
        folder: Folder | None = self._current
        while folder is not None:
            names.insert(0, folder.name)
            folder = folder.parent
        return {"current_working_directory": "/" + "/".join(names)}

    def ls(self, a: bool = False) -> Reply:  # noqa: FBT001, FBT002 (as the policy calls it)
        """Names in the current folder; hidden ones too with `a`."""
        shown = [name for name in self._current.contents if a or not name.startswith(".")]
        return {"current_directory_content": shown}

    def cd(self, folder: str) -> Reply:
        """Go into a folder of the current one, or to its parent with `..`."""
        folder = folder.rstrip("/") or "/"
        if "/" in folder and folder != "/":
            return {"error": f"cd: {folder}: go one folder at a time"}
        if folder == "..":
            if self._current.parent is None:
                return {"error": "cd: the current folder has no parent"}
            self._current = self._current.parent
            return {}
        found = self._folder_at(folder)
        if found is None:
            return {"error": f"cd: {folder}: no such folder"}
        self._current = found
        return {"current_working_directory": found.name}

    def mkdir(self, dir_name: str) -> Reply | None:
        """Make a folder in the current one."""
        if fault := self._cannot_make(dir_name):
            return {"error": f"mkdir: {dir_name}: {fault}"}
        self._add(self._current, dir_name, Folder(dir_name, self._current))
        return None

    def touch(self, file_name: str) -> Reply | None:
        """Make an empty file in the current folder."""
        if fault := self._cannot_make(file_name):
            return {"error": f"touch: {file_name}: {fault}"}
        self._add(self._current, file_name, File(""))
        return None

    def echo(self, content: str, file_name: str | None = None) -> Reply | None:
        """Write text into a file, or show it."""
        if file_name is None:
            return {"terminal_output": content}
        if _is_forbidden(file_name):
            return {"error": f"echo: {file_name}: a name with a forbidden character"}
        if not file_name:
            return {"terminal_output": content}
        if file_name not in self._current.contents:
            return {"error": f"echo: {file_name}: no such file"}
        file = self._current.contents[file_name]
        if isinstance(file, Folder):
            raise TypeError(f"{file_name} is a folder")
        before, file.content = file.content, content
        self._undo_beyond_limits(lambda: setattr(file, "content", before))
        return None

    def cat(self, file_name: str) -> Reply:
        """Show a file's text."""
        if _is_forbidden(file_name):
            return {"error": f"cat: {file_name}: a name with a forbidden character"}
        if file_name not in self._current.contents:
            return {"error": f"cat: {file_name}: no such file"}
        entry = self._current.contents[file_name]
        if isinstance(entry, Folder):
            return {"error": f"cat: {file_name}: is a folder"}
        return {"file_content": entry.content}

    def find(self, path: str = ".", name: str | None = None) -> Reply:
        """Paths below a folder whose names contain `name`."""
        start = self._folder_at(path)
        if start is None:
            return {"error": f"find: {path}: no such folder"}
        found = [
            where for where, one in _below(start, path.rstrip("/")) if name is None or name in one
        ]
        return {"matches": found}

    def wc(self, file_name: str, mode: str = "l") -> Reply:
        """Count a file's lines (l), words (w) or characters (c)."""
        if mode not in ["l", "w", "c"]:
            return {"error": f"wc: {mode}: not l, w or c"}
        file = self._file(file_name)
        if file is None:
            return {"error": f"wc: {file_name}: no such file"}
        match mode:
            case "l":
                return {"count": len(file.content.splitlines()), "type": "lines"}
            case "w":
                return {"count": len(file.content.split()), "type": "words"}
            case _:
                return {"count": len(file.content), "type": "characters"}

    def sort(self, file_name: str) -> Reply:
        """Show a file's lines in order; the file stays as it is."""
        file = self._file(file_name)
        if file is None:
            return {"error": f"sort: {file_name}: no such file"}
        return {"sorted_content": "\n".join(sorted(file.content.splitlines()))}

    def grep(self, file_name: str, pattern: str) -> Reply:
        """A file's lines that contain `pattern`."""
        file = self._file(file_name)
        if file is None:
            return {"error": f"grep: {file_name}: no such file"}
        return {"matching_lines": [one for one in file.content.splitlines() if pattern in one]}

    def du(self, human_readable: bool = False) -> Reply:  # noqa: FBT001, FBT002
        """Bytes of all files below the current folder."""
        size = float(_size(self._current))
        if not human_readable:
            return {"disk_usage": f"{int(size)} bytes"}
        for unit in _UNITS:
            if size < 1024:
                return {"disk_usage": f"{size:.2f} {unit}"}
            size /= 1024
        return {"disk_usage": f"{size:.2f} PB"}

    def tail(self, file_name: str, lines: int = 10) -> Reply:
        """A file's last lines."""
        file = self._file(file_name)
        if file is None:
            return {"error": f"tail: {file_name}: no such file"}
        content = file.content.splitlines()
        return {"last_lines": "\n".join(content[-min(lines, len(content)) :])}

    def diff(self, file_name1: str, file_name2: str) -> Reply:
        """Lines of two files that differ."""
        one, other = self._file(file_name1), self._file(file_name2)
        if one is None or other is None:
            return {"error": f"diff: {file_name1}, {file_name2}: no such file"}
        # only up to the end of the shorter file, as upstream
        pairs = zip(one.content.splitlines(), other.content.splitlines(), strict=False)
        return {"diff_lines": "\n".join(f"- {a}\n+ {b}" for a, b in pairs if a != b)}

    def mv(self, source: str, destination: str) -> Reply:
        """Rename a file or folder, or move it into a folder."""
        entry = self._current.contents.get(source)
        if entry is None:
            return {"error": f"mv: {source}: no such file or folder"}
        if "/" in destination:
            return {"error": f"mv: {destination}: a name is needed, and no path"}
        if destination not in self._current.contents:
            self._put(entry, destination, self._current)
            del self._current.contents[source]
            return {"result": f"{source} is now {destination}"}
        target = self._current.contents[destination]
        if isinstance(target, File):
            return {"error": f"mv: {destination}: is a file"}
        if target is entry:
            raise ValueError("a folder cannot be moved into itself")
        if source in target.contents:
            return {"error": f"mv: {destination}/{source}: exists"}
        self._put(entry, source, target)
        del self._current.contents[source]
        return {"result": f"{source} is now {destination}/{source}"}

    def rm(self, file_name: str) -> Reply:
        """Remove a file or folder."""
        if file_name not in self._current.contents:
            return {"error": f"rm: {file_name}: no such file or folder"}
        del self._current.contents[file_name]
        return {"result": f"{file_name} is removed"}

    def rmdir(self, dir_name: str) -> Reply:
        """Remove an empty folder."""
        entry = self._current.contents.get(dir_name)
        if not isinstance(entry, Folder):
            return {"error": f"rmdir: {dir_name}: no such folder"}
        if entry.contents:
            return {"error": f"rmdir: {dir_name}: is not empty"}
        del self._current.contents[dir_name]
        return {"result": f"{dir_name} is removed"}

    def cp(self, source: str, destination: str) -> Reply:
        """Copy a file or folder."""
        entry = self._current.contents.get(source)
        if entry is None:
            return {"error": f"cp: {source}: no such file or folder"}
        if "/" in destination:
            return {"error": f"cp: {destination}: a name is needed, and no path"}
        if destination not in self._current.contents:
            self._put(entry, destination, self._current, copied=True)
            return {"result": f"{source} is copied to {destination}"}
        target = self._current.contents[destination]
        if isinstance(target, File):
            return {"error": f"cp: {destination}: is a file"}
        if target is entry:
            raise ValueError("a folder cannot be copied into itself")
        self._put(entry, source, target, copied=True)
        return {"result": f"{source} is copied to {destination}/{source}"}

    # ------------------------------------------------------------------------------- inside

    def _put(
        self, entry: File | Folder, name: str, folder: Folder, *, copied: bool = False
    ) -> None:
        """Add an entry with the content of `entry`; entries inside a folder are shared."""
        if isinstance(entry, File):
            self._add(folder, name, File(entry.content))
            return
        made = Folder(name, folder)
        made.contents = dict(entry.contents) if copied else entry.contents
        self._add(folder, name, made)

    def _add(self, folder: Folder, name: str, entry: File | Folder) -> None:
        folder.add(name, entry)
        self._undo_beyond_limits(lambda: folder.contents.pop(name))

    def _undo_beyond_limits(self, undo: Callable[[], object]) -> None:
        """Undo a change that leaves more than the limits allow.

        Raises:
            ValueError: it does.
        """
        known: dict[int, Extent | None] = {}
        try:
            # a current folder that was removed is seen as well
            for top in (self._root, self._current):
                if top.extent(known).characters > _MAX_CHARACTERS:
                    raise ValueError(f"more than {_MAX_CHARACTERS} characters")
        except ValueError:
            undo()
            raise

    def _cannot_make(self, name: str) -> str:
        if _is_forbidden(name):
            return "a name with a forbidden character"
        return "exists" if name in self._current.contents else ""

    def _file(self, name: str) -> File | None:
        entry = self._current.contents.get(name)
        return entry if isinstance(entry, File) else None

    def _folder_at(self, path: str | None) -> Folder | None:
        if path is None or path == ".":
            return self._current
        folder = self._root if path.startswith("/") else self._current
        if path == "/":
            return folder
        for name in path.strip("/").split("/"):
            entry = folder if name == "." else folder.contents.get(name)
            if not isinstance(entry, Folder):
                return None
            folder = entry
        return folder


def _is_forbidden(name: str) -> bool:
    return any(character in _FORBIDDEN for character in name)


def _below(folder: Folder, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and name of everything below a folder, each folder before its content."""
    for name, entry in folder.contents.items():
        yield f"{path}/{name}", name
        if isinstance(entry, Folder):
            yield from _below(entry, f"{path}/{name}")


def _size(folder: Folder) -> int:
    """Return the bytes of all files below a folder."""
    return sum(
        _size(entry) if isinstance(entry, Folder) else len(entry.content.encode())
        for entry in folder.contents.values()
    )


def _fill(folder: Folder, described: object, *, depth: int) -> None:
    """Create the content that a configuration describes.

    Raises:
        DataError: it is not a folder, or nested too deeply.
    """
    contents = _object(_object(described).get("contents"))
    if depth > _MAX_DEPTH or "contents" not in _object(described):
        raise DataError(f"GorillaFileSystem.root: {folder.name} needs contents")
    for name, one in contents.items():
        entry = _object(one)
        if entry.get("type") == "directory":
            made = Folder(name, folder)
            _fill(made, entry, depth=depth + 1)
            folder.contents[name] = made
        elif entry.get("type") == "file" and isinstance(entry.get("content"), str):
            folder.contents[name] = File(entry["content"])
        else:
            raise DataError(f"GorillaFileSystem.root: {name} is neither a file nor a directory")


def _object(value: object) -> dict[str, Any]:
    """Return an object of a configuration; empty for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
