"""Harbor's task folders (terminal-bench 2), played in a sandbox.

asked      Write "Hello, world!" to /app/hello.txt.
shell      echo 'Hello, world!' > hello.txt
answer     done                              tests/test.sh writes /logs/verifier/reward.txt: 1
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, cast

from espalier.config import EnvironmentConfig
from espalier.environments.contract import (
    Environments,
    EnvironmentsOver,
    ProgramBrokeSandboxError,
)
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily, dealt_split, make_task
from espalier.environments.mixins import HasBenchmarks
from espalier.environments.teaching import GaveUp, Script
from espalier.environments.tools import Tool
from espalier.records import DataError, Draft, FinalAnswer, Split, Task, ToolCalls, Tracker
from espalier.records.trajectory import Trajectory
from espalier.sandbox.call_time import call_waits
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_interop.harbor.config import HarborConfig
from espalier_interop.harbor.playing import Attempt, NoRewardError, top_folders
from espalier_interop.harbor.reading import Need, TaskFolder, read_folders

INSTRUCTIONS = (
    "You work in a terminal, one command at a time. When the task is done, write done, without a "
    "call.\n"
)
DONE = "done"
_MIB = 1 << 20
_SHOWN = 5


class Harbor(SimpleFamily[HarborConfig], HasBenchmarks):
    """The family of Harbor's task folders."""

    name = "harbor"
    config: ClassVar[type[EnvironmentConfig]] = HarborConfig
    instructions = INSTRUCTIONS
    answers_from_evidence = False
    headline = "reward"

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the range configured in the profile."""
        return cast("HarborConfig", settings).rewards

    def tools(self) -> Sequence[Tool]:
        """Return the shell's schema; `environments` binds it to an episode's sandbox."""
        return (_shell_tool(None),)

    # ------------------------------------------------------------------------------ tasks

    @cached_property
    def _folders(self) -> list[TaskFolder]:
        path = self.settings.folders
        if path is None:
            raise DataError(
                "environment.folders is unset. Name a folder with Harbor's tasks: folders that "
                "have a task.toml, instruction.md, environment/ and tests/"
            )
        return self._met(path, read_folders(path))

    def _met(self, path: Path, folders: Sequence[TaskFolder]) -> list[TaskFolder]:
        """Return the folders whose requirements are met.

        Raises:
            DataError: a task has unmet requirements and must not be skipped, or all have.
        """
        refused = {one.name: found for one in folders if (found := self.unmet(one))}
        kept = [one for one in folders if one.name not in refused]
        if refused and (not self.settings.skip_refused or not kept):
            shown = "; ".join(
                f"{name}: {', '.join(f'{need.what} ({need.kind})' for need in needs)}"
                for name, needs in list(refused.items())[:_SHOWN]
            )
            kinds = sorted({need.kind for needs in refused.values() for need in needs})
            raise DataError(
                f"{path}: {len(refused)} of {len(folders)} tasks need what a sandbox does not "
                f"have: {shown}{' ...' if len(refused) > _SHOWN else ''}. Where the sandbox's "
                f"image has it, name it in environment.ignored_needs (of {', '.join(kinds)}); or "
                "leave such tasks out by environment.skip_refused = true"
            )
        for one in kept:
            one.environment_files()  # report faulty files before the first episode
        return kept

    def unmet(self, folder: TaskFolder) -> list[Need]:
        """Return what a task needs beyond what the profile says is available."""
        return [need for need in folder.needs if need.kind not in self.settings.ignored_needs]

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return folders whose names are assigned to the split."""
        splits = self.profile.splits
        own = [one for one in self._folders if dealt_split(one.name, splits) == split]
        return [self._task(one, split) for one in own[:count]]

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return the tasks of another folder, all held out."""
        return [self._task(one, "heldout") for one in self._met(path, read_folders(path))]

    def _task(self, folder: TaskFolder, split: Split) -> Task:
        metadata = folder.config.metadata
        return make_task(
            self.name,
            folder.instruction,
            gold=(folder.name,),  # the folder's tests judge
            split=split,
            source=folder.config.task.name or folder.name,
            key=folder.name,
            kind="tests",
            arguments={"folder": str(folder.path.resolve())},
            metadata={
                "extra": {
                    "kind": str(metadata.get("category", "")),
                    "query": folder.name,
                    "difficulty": str(metadata.get("difficulty", "")),
                }
            },
        )

    def ingest(self, draft: Draft, tracker: Tracker) -> None:
        """Record which folders are played, and the unmet requirements of the others."""
        super().ingest(draft, tracker)
        path = self.settings.folders
        found = read_folders(path) if path is not None else []
        needs = {one.name: [need._asdict() for need in self.unmet(one)] for one in found}
        (draft.path / "needs.json").write_text(json.dumps(needs, indent=1), encoding="utf-8")
        draft.rows["folders"] = len(found)

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open a pool of sandboxes, and environments for the configured folders."""
        del knowledge
        with self._environments_of(self._folders) as environments:
            yield lambda _view: environments

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open a pool of sandboxes, and environments for the folders in `path`."""
        del knowledge
        with self._environments_of(self._met(path, read_folders(path))) as environments:
            yield environments

    @contextmanager
    def _environments_of(self, folders: Sequence[TaskFolder]) -> Generator[Environments]:
        links = sorted(frozenset[str]().union(*map(top_folders, folders)))
        by_path = {str(one.path.resolve()): one for one in folders}
        pool = sandbox_pool(
            self.settings.sandbox, self.profile.kubernetes,
            disk_bytes=self.settings.disk_mb * _MIB, links=links,
        )  # fmt: skip
        with pool as sandboxes:
            yield self.environments_by(
                self.tools(), lambda task: self._rules_of(task, by_path, sandboxes)
            )

    def _rules_of(
        self, task: Task, folders: Mapping[str, TaskFolder], sandboxes: PoolThread
    ) -> EpisodeRules:
        path = str(task.arguments["folder"])
        if path not in folders:
            raise DataError(f"task {task.task_id}: its folder {path} is not there any more")
        attempt = Attempt(folders[path], self.settings, sandboxes)
        graded = _Graded(attempt, partial(self._reward, folders[path], sandboxes))
        return replace(
            self.rules((_shell_tool(attempt),)),
            verify=partial(self._judged, graded),
            # the tests run when the policy says done: the sandbox is returned at the end
            reply=graded.run,
            on_end=attempt.end,
        )

    async def _reward(self, folder: TaskFolder, sandboxes: PoolThread, attempt: Attempt) -> float:
        """Run the tests in the episode's sandbox and return their reward.

        Raises:
            ProgramBrokeSandboxError: the policy's actions keep the tests from giving a reward.
            DataError: the tests give no reward in an untouched environment either.
        """
        try:
            return self._chosen(folder, await _in_its_own_time(attempt.rewards))
        except NoRewardError as missing:
            await self._check_untouched(folder, sandboxes)
            raise ProgramBrokeSandboxError(
                f"what was done keeps the tests from giving a reward: {missing}"
            ) from missing

    async def _check_untouched(self, folder: TaskFolder, sandboxes: PoolThread) -> None:
        """Check, once per folder, that its tests give a reward if nothing was done.

        Raises:
            DataError: the tests give no reward.
        """
        if folder.name in self._rewarding:
            return
        untouched = Attempt(folder, self.settings, sandboxes, judging=True)
        try:
            await _in_its_own_time(untouched.rewards)
        except NoRewardError as error:
            raise DataError(
                f"{folder.path}: the tests give no reward, not even where nothing was done: "
                f"{error}. A missing reward is never a 0: mend tests/test.sh, or leave the "
                "task out"
            ) from error
        finally:
            untouched.end()
        self._rewarding.add(folder.name)

    @cached_property
    def _rewarding(self) -> set[str]:
        """Folders whose tests gave a reward in an untouched environment."""
        return set()

    def _chosen(self, folder: TaskFolder, rewards: Mapping[str, float]) -> float:
        key = self.settings.reward_key
        if len(rewards) == 1:
            return next(iter(rewards.values()))
        if key not in rewards:
            raise DataError(
                f"{folder.path}: its tests give {', '.join(rewards)} and no {key}; name one by "
                "environment.reward_key"
            )
        return rewards[key]

    def _judged(
        self, graded: _Graded, _task: Task, answer: str | None, _turns: TurnResults
    ) -> float:
        if answer is None or graded.reward is None:
            return self.settings.rewards[0]
        return graded.reward

    def has_text_answer(self, task: Task) -> bool:
        """Return False: tests score what an episode left behind."""
        del task
        return False

    def verify(self, task: Task, answer: str | None) -> float:
        """Refuse: the tests judge what was done in a sandbox, not an answer.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"task {task.task_id}: the answer {answer!r} is not judged; its tests judge an episode"
        )

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return the reward, scaled from the range `rewards` to 0-1."""
        del task
        low, high = self.settings.rewards
        paid = trajectory.reward.get("outcome", low) / (self.profile.reward.outcome or 1.0)
        return {"reward": (paid - low) / (high - low)}

    # ------------------------------------------------------------------------------ teaching

    def demonstrate(self, task: Task) -> Script:
        """Yield the author's solution, as one command.

        Raises:
            GaveUp: the folder has no solution.
        """
        path = Path(str(task.arguments["folder"]), "solution", "solve.sh")
        if not path.is_file():
            raise GaveUp("no solution")
        yield ToolCalls.one("shell", {"command": path.read_text(encoding="utf-8")})
        yield FinalAnswer(DONE)

    def gold_script(self, task: Task) -> Script:
        """Yield the author's solution, as `demonstrate` does."""
        yield from self.demonstrate(task)


async def _in_its_own_time(work: Callable[[], Awaitable[dict[str, float]]]) -> dict[str, float]:
    """Await tests without counting them against the time limit of the current call."""

    async def begun() -> dict[str, float]:
        return await work()

    with call_waits():
        return await asyncio.create_task(begun(), context=contextvars.Context())


class _Graded:
    """The reward of an episode, available once the policy has said that it is done."""

    def __init__(self, attempt: Attempt, reward_of: Callable[[Attempt], Awaitable[float]]) -> None:
        self._attempt = attempt
        self._reward_of = reward_of
        self.reward: float | None = None

    async def run(self, _said: str) -> None:
        """Run the task's tests."""
        self.reward = await self._reward_of(self._attempt)


def _shell_tool(attempt: Attempt | None) -> Tool:
    async def shell(command: str) -> str:
        """Run a shell command, and read what it prints."""
        raise AssertionError("only the schema of this tool is asked for")

    tool = Tool(shell, takes_code=True)
    return tool if attempt is None else tool.over(attempt.shell)
