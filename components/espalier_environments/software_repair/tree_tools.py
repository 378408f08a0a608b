"""The tools for the files of an episode: list, search, read and change them."""

from __future__ import annotations

import re
import textwrap
from typing import Annotated

from pydantic import Field

from espalier.environments.interpreter import shortened
from espalier.environments.tools import Tool, ToolError
from espalier_environments.software_repair.diffs import DiffError, checked_path
from espalier_environments.software_repair.worktree import Worktree

SUBMIT = "submit"
"""Name of the tool that ends an episode."""
_MAX_LISTED = 200
_MAX_FOUND = 40
_LINES_AT_ONCE = 200
_DEFINITION = r"^(?P<indent>[ \t]*)(?:async[ \t]+def|def|class)[ \t]+{name}\b"


class TreeTools:
    """The tools over one episode's files; docstrings of public methods are their descriptions."""

    def __init__(self, tree: Worktree, max_characters: int) -> None:
        self._tree = tree
        self._max_characters = max_characters

    def list_files(
        self, folder: Annotated[str, Field(description="all of them by default")] = ""
    ) -> str:
        """List the files of the repository, or of a folder in it."""
        inside = f"{folder.strip('/')}/" if folder.strip("/") not in ("", ".") else ""
        found = [path for path in self._tree.paths() if path.startswith(inside)]
        if not found:
            raise ToolError(f"there is no folder {folder}")
        more = [f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else []
        return self._shown("\n".join([*found[:_MAX_LISTED], *more]))

    def search(self, text: Annotated[str, Field(min_length=1)]) -> str:
        """Find the lines that contain a text, in every file."""
        found: list[str] = []
        for path in self._tree.paths():
            content = self._tree.read(path) or ""
            if text not in content:
                continue
            for number, line in enumerate(content.split("\n"), start=1):
                if text in line:
                    found.append(f"{path}:{number}: {line.strip()}")
                    if len(found) == _MAX_FOUND:
                        return self._shown("\n".join([*found, "and perhaps more"]))
        return self._shown("\n".join(found) or "nothing found")

    def view(
        self,
        path: str,
        first: Annotated[int, Field(ge=1, description="line to begin with")] = 1,
        last: Annotated[int, Field(ge=0, description="line to end with; 0: as many as fit")] = 0,
    ) -> str:
        """Read a file, with the numbers of its lines."""
        lines = self._lines(path)
        end = min(last or first + _LINES_AT_ONCE - 1, len(lines))
        if first > max(len(lines), 1):
            raise ToolError(f"{path} has {len(lines)} lines")
        return self._shown(_numbered(lines[first - 1 : end], first))

    def show(self, name: Annotated[str, Field(min_length=1, max_length=200)]) -> str:
        """Read the definition of a function or class, with its file and its lines' numbers."""
        pattern = re.compile(_DEFINITION.format(name=re.escape(name)), re.MULTILINE)
        for path in self._tree.paths():
            content = self._tree.read(path) or ""
            if path.endswith(".py") and (found := pattern.search(content)):
                first = content.count("\n", 0, found.start()) + 1
                lines = _block(content.split("\n")[first - 1 :], len(found["indent"]))
                return self._shown(f"{path}\n{_numbered(lines, first)}")
        raise ToolError(f"nothing is defined by the name {name}")

    def replace(self, path: str, old: Annotated[str, Field(min_length=1)], new: str) -> str:
        """Replace a text of a file, which has to stand there exactly once."""
        content = self._content(path)
        if (count := content.count(old)) != 1:
            raise ToolError(
                f"the old text stands {count} times in {path}; give it with more around it"
            )
        self._write(path, content.replace(old, new))
        return "replaced"

    def replace_line(
        self,
        path: str,
        line: Annotated[int, Field(ge=1, description="its number")],
        new: Annotated[str, Field(description="one line or several; empty deletes it")],
    ) -> str:
        """Replace a line of a file; text without indentation takes that of the line."""
        lines = self._lines(path)
        if line > len(lines):
            raise ToolError(f"{path} has {len(lines)} lines")
        old = lines[line - 1]
        indent = old[: len(old) - len(old.lstrip())]
        if new and not new[0].isspace():
            new = textwrap.indent(new, indent)
        content = self._content(path)
        end = "\n" if content.endswith("\n") else ""
        after = [*lines[: line - 1], *([new] if new else []), *lines[line:]]
        self._write(path, "\n".join(after) + end)
        return "replaced"

    def write_file(self, path: str, content: str) -> str:
        """Write a whole file, a new one or in the place of one that is there."""
        self._write(path, content)
        return "written"

    def delete_file(self, path: str) -> str:
        """Delete a file."""
        self._content(path)
        self._write(path, None)
        return "deleted"

    def submit(self) -> str:
        """Hand in the repository as it is now; this ends the work."""
        return "submitted"

    def _shown(self, text: str) -> str:
        return shortened(text, self._max_characters).encode(errors="replace").decode()

    def _content(self, path: str) -> str:
        try:
            content = self._tree.read(checked_path(path))
        except DiffError as error:
            raise ToolError(str(error)) from error
        if content is None:
            raise ToolError(f"there is no file {path}")
        return content

    def _lines(self, path: str) -> list[str]:
        content = self._content(path)
        return content.removesuffix("\n").split("\n")

    def _write(self, path: str, content: str | None) -> None:
        try:
            self._tree.write(path, content)
        except DiffError as error:
            raise ToolError(str(error)) from error


def tree_tools(tools: TreeTools) -> tuple[Tool, ...]:
    """Return the tools with their schemas, bound to one episode's files."""
    bound = {template.spec.name: template for template in _TEMPLATES}
    return tuple(template.over(getattr(tools, name)) for name, template in bound.items())


def _numbered(lines: list[str], first: int) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(lines, start=first))


def _block(lines: list[str], indent: int) -> list[str]:
    """Return the lines of a definition: its head, and the lines indented more than that."""
    end = 1
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            if len(line) - len(line.lstrip()) <= indent and not line.lstrip().startswith(
                (")", "]")
            ):
                break
            end = number
    return lines[:end]


_NOWHERE = TreeTools(Worktree({}), 0)
_TEMPLATES = tuple(
    Tool(method)
    for method in (
        _NOWHERE.list_files,
        _NOWHERE.search,
        _NOWHERE.view,
        _NOWHERE.show,
        _NOWHERE.replace,
        _NOWHERE.replace_line,
        _NOWHERE.write_file,
        _NOWHERE.delete_file,
        _NOWHERE.submit,
    )
)
