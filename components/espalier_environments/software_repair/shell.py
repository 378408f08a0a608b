"""The tool `shell`: commands in a sandbox that holds the policy's tree, and their changes to it.

The tree in this process is authoritative. Before a command, edits since the last one are written
into the sandbox; after it, differences are read back. What is read back was written by a policy's
programs, so its paths and sizes are checked like any other.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping

from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.interpreter import observed
from espalier.environments.tools import Tool, ToolOutput
from espalier.sandbox import ExecResult, Sandbox, SandboxRefused
from espalier.sandbox.choice import PoolThread
from espalier_environments.software_repair.diffs import DiffError
from espalier_environments.software_repair.worktree import Worktree

_MAX_READ_BACK = 30 * 2**20
_MAX_FILES = 20_000
_PATH = "/usr/local/bin:/usr/bin:/bin"

_WRITE = """
import json, os, sys
given = json.load(sys.stdin)
for path, content in given.items():
    if content is None:
        try:
            os.remove(path)
        except OSError:
            pass
        continue
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        stream.write(content)
"""

_READ = """
import hashlib, json, os, stat, sys
given = json.load(sys.stdin)
known, found, total = given["known"], {}, 0
for folder, folders, names in os.walk("."):
    folders[:] = [name for name in folders if name not in given["skipped"]]
    for name in names:
        path = os.path.relpath(os.path.join(folder, name), ".")
        if path == given["into"]:
            continue
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            with open(path, "rb") as stream:
                content = stream.read(given["most"] + 1)
        except OSError:
            continue
        before = known.pop(path, None)
        if hashlib.sha256(content).hexdigest() != before:
            total += len(content)
            if total > given["most"] or len(found) >= given["files"]:
                sys.exit("too much was written")
            found[path] = content.decode("utf-8", "surrogateescape")
found.update(dict.fromkeys(known))
with open(given["into"], "w", encoding="ascii") as stream:
    json.dump(found, stream)
"""
_SKIPPED = ("__pycache__", ".git", ".pytest_cache")


class TreeShell:
    """Runs commands on one episode's tree; the sandbox is borrowed for the first command."""

    def __init__(self, tree: Worktree, sandboxes: PoolThread, timeout_s: float) -> None:
        self._tree = tree
        self._timeout_s = timeout_s
        self._held = HeldSandbox(sandboxes, self._begin)
        self._there: dict[str, str] = {}
        """Path -> content of the files in the sandbox."""

    async def run(self, command: str) -> ExecResult:
        """Run a command of `sh`, and apply its changes to the tree.

        Raises:
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
            SandboxRefused: the command is too large or not valid text.
            DiffError: the command left too many files or invalid paths.
        """

        async def work(sandbox: Sandbox) -> ExecResult:
            await self._bring(sandbox)
            result = await sandbox.exec(
                ["sh", "-c", command], env={"PATH": _PATH}, timeout_s=self._timeout_s
            )
            await self._take(sandbox)
            return result

        return await self._held.use(work, keep_at=(SandboxRefused, DiffError))

    def end(self) -> None:
        """End the episode and give the sandbox back."""
        self._held.end()

    async def _begin(self, _sandbox: Sandbox) -> None:
        self._there = {}

    async def _bring(self, sandbox: Sandbox) -> None:
        """Write edits since the last command into the sandbox."""
        tree = {path: self._tree.read(path) or "" for path in self._tree.paths()}
        changes: dict[str, str | None] = {
            path: content for path, content in tree.items() if self._there.get(path) != content
        }
        changes |= dict.fromkeys(set(self._there) - set(tree))
        if changes:
            result = await sandbox.run_python(_WRITE, stdin=json.dumps(changes).encode())
            if not result.succeeded:
                raise DiffError(f"the files cannot be written: {result.text[-200:].strip()}")
        self._there = tree

    async def _take(self, sandbox: Sandbox) -> None:
        """Read back what the command changed."""
        into = f".tree-{secrets.token_hex(8)}"
        known: dict[str, str] = {}
        for path, content in self._there.items():
            written = content.encode("utf-8", "surrogateescape")
            known[path] = hashlib.sha256(written).hexdigest()
        asked = {
            "known": known, "into": into, "most": _MAX_READ_BACK, "files": _MAX_FILES,
            "skipped": _SKIPPED,
        }  # fmt: skip
        result = await sandbox.run_python(_READ, stdin=json.dumps(asked).encode())
        if not result.succeeded:
            raise DiffError(
                f"the files of the sandbox cannot be read: {result.text[-200:].strip()}"
            )
        changes = _changes(await sandbox.get(into))
        await sandbox.exec(["rm", "-f", into])
        for path, content in changes.items():
            self._tree.write(path, content)
        self._there = {path: self._tree.read(path) or "" for path in self._tree.paths()}


def _changes(said: bytes) -> Mapping[str, str | None]:
    """Parse the changes that were read back, which a program of the policy may have forged.

    Raises:
        DiffError: they are not an object of texts.
    """
    try:
        value: object = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise DiffError("the files of the sandbox cannot be read") from error
    if not isinstance(value, dict):
        raise DiffError("the files of the sandbox cannot be read")
    changes: dict[str, str | None] = {}
    for path, content in value.items():  # pyright: ignore[reportUnknownVariableType] (checked here)
        if not isinstance(path, str) or not (content is None or isinstance(content, str)):
            raise DiffError("the files of the sandbox cannot be read")
        changes[path] = content
    return changes


def shell_tool(shell: TreeShell | None, max_characters: int) -> Tool:
    """Return the tool over one episode's shell; without one, only its schema."""

    async def run(command: str) -> ToolOutput:
        """Run a shell command in the repository's folder, and read what it prints."""
        assert shell is not None, "only the schema of this tool is asked for"
        try:
            result = await shell.run(command)
        except (SandboxRefused, DiffError) as refused:
            return ToolOutput(f"error: {refused}", succeeded=False)
        return ToolOutput(observed(result, max_characters), succeeded=result.succeeded)

    run.__name__ = "shell"
    return Tool(run)
