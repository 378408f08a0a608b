"""One episode of a task folder: its files in a sandbox, commands of the policy, its tests."""

from __future__ import annotations

import io
import json
import math
import secrets
import tarfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import cast

from espalier.environments.held_sandbox import HeldSandbox
from espalier.environments.interpreter import observed
from espalier.environments.tools import ToolError, ToolOutput
from espalier.records import DataError
from espalier.sandbox import ExecResult, Sandbox, SandboxRefused
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.protocol import SandboxLost
from espalier_interop.harbor.config import HarborConfig
from espalier_interop.harbor.reading import MADE, SYSTEM, TaskFolder

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IN = 'cd "$0" && exec bash -c "$1"'
_TAR_S = 30.0
_REWARDS = ("logs/verifier/reward.json", "logs/verifier/reward.txt")
_MAX_REWARD_CHARACTERS = 1 << 16


class NoRewardError(Exception):
    """The tests of a task left no reward; the text says what they did instead."""


def top_folders(folder: TaskFolder) -> frozenset[str]:
    """Return the names of the top-level folders that a task writes to."""
    recipe = folder.recipe
    paths = [folder.workdir, *recipe.folders, *(copy.target for copy in recipe.copies)]
    tops = {PurePosixPath(path).parts[1] for path in paths if len(PurePosixPath(path).parts) > 1}
    return frozenset(tops | set(MADE)) - SYSTEM - {"tmp"}


class Attempt:
    """A sandbox with a task's files; borrowed for the first command."""

    def __init__(
        self,
        folder: TaskFolder,
        config: HarborConfig,
        sandboxes: PoolThread,
        *,
        judging: bool = False,
    ) -> None:
        self._folder = folder
        self._config = config
        self._held = HeldSandbox(sandboxes, self._stage, judging=judging)
        self._has_run = False

    async def shell(self, command: str) -> ToolOutput:
        """Run a command of the policy and return its output.

        Raises:
            ToolError: the command is too large or not valid text.
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """

        async def work(sandbox: Sandbox) -> ExecResult:
            self._has_run = True
            return await self._exec(sandbox, command, {}, self._config.command_timeout_s)

        try:
            result = await self._held.use(work, keep_at=(SandboxRefused,))
        except SandboxRefused as refused:
            raise ToolError(str(refused)) from refused
        shown = observed(result, self._config.max_observation_characters)
        return ToolOutput(shown, succeeded=result.succeeded)

    async def rewards(self) -> dict[str, float]:
        """Put the task's tests into the sandbox, run them, and return their rewards.

        Raises:
            NoRewardError: the tests left no reward, or no numbers.
            EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
        """
        return await self._held.use(self._verify)

    def end(self) -> None:
        """End the episode and give the sandbox back."""
        self._held.end()

    async def _verify(self, sandbox: Sandbox) -> dict[str, float]:
        verifier = self._folder.config.verifier
        await self._place(sandbox, self._folder.tree("tests"))
        # remove whatever the policy left there: it is not a reward
        clear = "rm -rf /logs/verifier && mkdir -p /logs/verifier"
        await self._exec(sandbox, clear, {}, _TAR_S)
        result = await self._exec(
            sandbox,
            "bash /tests/test.sh",
            self._folder.variables(verifier.env),
            min(verifier.timeout_sec, self._config.verifier_timeout_s),
        )
        return await self._read_rewards(sandbox, result)

    async def _read_rewards(self, sandbox: Sandbox, result: ExecResult) -> dict[str, float]:
        for name in _REWARDS:
            try:
                text = (await sandbox.get(name)).decode(errors="replace")
            except SandboxRefused:
                continue
            return read_reward(name, text)
        said = observed(result, 600)
        raise NoRewardError(f"tests/test.sh wrote no reward (status {result.exit_status}): {said}")

    async def _stage(self, sandbox: Sandbox) -> None:
        folder = self._folder
        paths = [folder.workdir, *folder.recipe.folders, "/tests", "/solution", "/logs/agent",
                 "/logs/verifier", "/logs/artifacts"]  # fmt: skip
        # top-level folders link into the workspace, which a reset empties: create the targets
        made = [f"/workspace{path}" for path in paths if not path.startswith("/tmp")]
        result = await sandbox.exec(["mkdir", "-p", *made], timeout_s=_TAR_S)
        missing = await sandbox.exec(["ls", "-d", *sorted({f"/{p.split('/')[1]}" for p in paths})])
        if not result.succeeded or not missing.succeeded:
            raise DataError(
                f"{folder.path}: the sandbox has no folders of the task that can be written "
                f"({(result.text + missing.text).strip()[-200:]}). In an image of yours, make "
                "/app, /tests, /solution and /logs links to the folders of that name in /workspace"
            )
        await self._place(sandbox, folder.environment_files())

    async def _place(self, sandbox: Sandbox, files: Mapping[str, bytes]) -> None:
        """Put files into the sandbox, whatever the policy left there.

        Raises:
            DataError: they do not fit into an untouched sandbox.
            SandboxLost: the policy's commands left no room for them.
        """
        if not files:
            return
        name = f"placed-{secrets.token_hex(8)}.tar.gz"
        try:
            await sandbox.put(name, packed(files))
            unpack = ["sh", "-c", 'tar -xzf "$0" && rm "$0"', name]
            result = await sandbox.exec(unpack, timeout_s=_TAR_S)
            fault = "" if result.succeeded else result.text[-300:].strip() or "killed"
        except SandboxRefused as refused:
            fault = str(refused)
        if fault and self._has_run:
            raise SandboxLost(f"{sandbox.name}: no place for files: {fault}", by_program=True)
        if fault:
            raise DataError(
                f"{self._folder.path}: its files cannot be placed in a sandbox ({fault}). Raise "
                "environment.disk_mb, or put them into the image"
            )

    async def _exec(
        self, sandbox: Sandbox, command: str, variables: Mapping[str, str], within_s: float
    ) -> ExecResult:
        env = {"PATH": _PATH, **self._folder.variables({}), **variables}
        argv = ["sh", "-c", _IN, self._folder.workdir, command]
        return await sandbox.exec(argv, env=env, timeout_s=within_s)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return an archive of files by absolute path, to be unpacked in the workspace."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", compresslevel=1) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def read_reward(name: str, text: str) -> dict[str, float]:
    """Return the numbers in a reward file.

    Raises:
        NoRewardError: the file holds anything else.
    """
    if len(text) > _MAX_REWARD_CHARACTERS:
        raise NoRewardError(f"{name} is longer than {_MAX_REWARD_CHARACTERS} characters")
    try:
        value: object = json.loads(text) if name.endswith(".json") else float(text)
    except (ValueError, RecursionError) as error:
        raise NoRewardError(f"{name} holds no number: {text[:80]!r}") from error
    named = cast("dict[str, object]", value) if isinstance(value, dict) else {"reward": value}
    rewards: dict[str, float] = {}
    for key, one in named.items():
        if isinstance(one, bool) or not isinstance(one, int | float) or not math.isfinite(one):
            raise NoRewardError(f"{name}: {key[:80]} is not a finite number")
        rewards[key] = float(one)
    if not rewards:
        raise NoRewardError(f"{name} holds no reward")
    return rewards
