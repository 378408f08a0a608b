"""Software repair (SWE-bench, Jimenez et al. 2023, arXiv:2310.06770).

The policy reads an issue, changes the files of a repository, and is judged by hidden tests: those
that failed because of the fault must pass, and those that passed must still pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from espalier.config import EnvironmentConfig, outcome_scale
from espalier.environments.benchmarks import benchmark_tasks
from espalier.environments.contract import Environments, EnvironmentsOver, in_own_time
from espalier.environments.episode import EpisodeRules, TurnResults
from espalier.environments.family import SimpleFamily, dealt_split
from espalier.environments.mixins import HasBenchmarks
from espalier.environments.reading import ReadingMaterial
from espalier.environments.teaching import Script
from espalier.environments.tools import Tool
from espalier.records import DataError, FinalAnswer, Split, Task, ToolCall, ToolCalls, json_digest
from espalier.records.trajectory import Trajectory
from espalier.rewards.swe_rl import BAD_FORMAT
from espalier.sandbox.choice import PoolThread, sandbox_pool
from espalier_environments.software_repair.config import SoftwareRepairConfig
from espalier_environments.software_repair.diffs import parsed_diff
from espalier_environments.software_repair.instances import instance_patches, read_instances
from espalier_environments.software_repair.judging import (
    Snapshots,
    answered_changes,
    gold_changes,
    is_resolved,
    likeness,
)
from espalier_environments.software_repair.leaks import fix_pairs, refuse_leaks_of_sandbox
from espalier_environments.software_repair.made_tasks import made_tasks
from espalier_environments.software_repair.reading_logs import DONE, RepositoryReading
from espalier_environments.software_repair.shell import TreeShell, shell_tool
from espalier_environments.software_repair.tree_tools import SUBMIT, TreeTools, tree_tools
from espalier_environments.software_repair.worktree import Worktree

INSTRUCTIONS = (
    "Repair the repository so that the issue is solved and nothing else changes. Read the code, "
    "change it, and hand it in by `submit`, or end with a message that calls nothing. Hidden tests "
    "judge the repository; changes of tests and of settings of test runners do not count.\n"
)
_ANSWERS = {
    "diff": "Your last message has to be the patch, as a unified diff with a/ and b/ paths.\n",
    "search_replace": (
        "Your last message has to be the patch, a block for each change: a line of ```python, a "
        "line of ### PATH, <<<<<<< SEARCH, whole lines of the file, =======, the lines in their "
        "place, >>>>>>> REPLACE, and a line of ```.\n"
    ),
}
_MIB = 2**20


class SoftwareRepair(SimpleFamily[SoftwareRepairConfig], HasBenchmarks):
    """The family of software repair tasks."""

    name = "software_repair"
    config = SoftwareRepairConfig
    instructions = INSTRUCTIONS
    splits_digits = True
    answers_from_evidence = False
    ends_by_call = True
    headline = "resolved"

    @classmethod
    def outcome_span(cls, settings: EnvironmentConfig) -> tuple[float, float]:
        """Return the outcome's range; SWE-RL's begins at -1, for text that is not a patch."""
        own = cast("SoftwareRepairConfig", settings)
        return (BAD_FORMAT, 1.0) if own.outcome == "swe_rl" else (0.0, 1.0)

    def tools(self) -> Sequence[Tool]:
        """Return the tools' schemas; `environments` binds them to an episode's files."""
        return self.tools_over(Worktree({}), None)

    def tools_over(self, tree: Worktree, shell: TreeShell | None) -> tuple[Tool, ...]:
        """Return the tools of an episode; without a shell, only the schema of that tool."""
        most = self.settings.max_observation_characters
        tools = tree_tools(TreeTools(tree, most))
        return (*tools, shell_tool(shell, most)) if self.settings.shell else tools

    # ------------------------------------------------------------------------------ tasks

    def tasks(self, split: Split, count: int) -> Sequence[Task]:
        """Return faults in generated repositories, or instances of the split's repositories."""
        splits = self.profile.splits
        if self.settings.instances is None:
            return made_tasks(self.settings.repositories, splits, split, count, self.name)
        read = read_instances(self.settings.instances, split, self.name)
        own = [task for task in read if dealt_split(str(task.metadata.pattern), splits) == split]
        return own[:count]

    def reading_material(self, knowledge: Path, train: Sequence[Task]) -> ReadingMaterial:
        """Return functions of generated repositories; for instances, demonstrations."""
        if self.settings.instances is not None:
            return super().reading_material(knowledge, train)
        return RepositoryReading(self.settings.repositories, self.profile.splits)

    # ------------------------------------------------------------------------------ playing

    @contextmanager
    def environments(self, knowledge: Path) -> Generator[EnvironmentsOver]:
        """Open a pool of sandboxes, scan one for leaks, and open environments.

        Raises:
            LeakError: a sandbox contains something that gives a fix away.
        """
        del knowledge
        known = self.settings.instances
        tasks = [] if known is None else read_instances(known, "train", self.name)
        with self._environments_for(tasks) as environments:
            yield lambda _view: environments

    @contextmanager
    def benchmark_environments(self, path: Path, knowledge: Path) -> Generator[Environments]:
        """Open environments over the snapshots that the profile names."""
        del knowledge
        with self._environments_for(read_instances(path, "heldout", self.name)) as environments:
            yield environments

    @contextmanager
    def _environments_for(self, tasks: Sequence[Task]) -> Generator[Environments]:
        with self._sandboxes() as sandboxes:
            if self.settings.shell:
                patches = (
                    patch for task in tasks for part in instance_patches(task) for patch in part
                )
                pairs = fix_pairs(patches)
                asyncio.run(sandboxes.run(self._refuse_leaks(sandboxes, pairs)))
            played = Attempts(self, sandboxes)
            yield self.environments_by(self.tools(), played.rules_of)

    def _sandboxes(self) -> PoolThread:
        return sandbox_pool(
            self.settings.sandbox, self.profile.kubernetes, disk_bytes=self.settings.disk_mb * _MIB
        )

    async def _refuse_leaks(self, sandboxes: PoolThread, pairs: frozenset[str]) -> None:
        async with sandboxes.claim() as sandbox:
            await refuse_leaks_of_sandbox(sandbox, pairs, ignored=self.settings.ignored_leaks)

    @property
    def snapshots(self) -> Snapshots:
        """The repositories of its tasks."""
        return Snapshots(self.settings.snapshots, self.settings.ignored_leaks)

    def verify(self, task: Task, answer: str | None) -> float:
        """Return the outcome of a patch given as text, whatever `answer` the profile sets.

        Hidden tests run in a sandbox that is started for them. Episodes are judged in warm
        sandboxes and do not use this method.
        """
        if answer is None:
            return self.outcome_span(self.settings)[0]
        kind = "diff" if self.settings.answer == "tree" else self.settings.answer
        settings = self.settings.model_copy(update={"answer": kind})
        snapshot = self.snapshots.files(task)
        tree = Worktree(snapshot)
        if settings.outcome == "swe_rl":
            return likeness(settings, task, snapshot, tree, answer)
        changes = answered_changes(settings, snapshot, tree, answer)
        if not changes:
            return 0.0
        with self._sandboxes() as sandboxes:
            judged = is_resolved(sandboxes, settings, task, snapshot, changes)
            return float(asyncio.run(sandboxes.run(judged)))

    # ------------------------------------------------------------------------------ benchmarks

    def read_benchmark(self, path: Path) -> Sequence[Task]:
        """Return SWE-bench's instances, after a check of their snapshots."""
        if self.settings.snapshots is None and (
            self.settings.outcome != "swe_rl" or self.settings.answer != "diff"
        ):
            raise DataError(
                f"{path}: needs environment.snapshots, the repositories of its instances; without "
                'them patches can be compared alone: environment.outcome = "swe_rl" and answer = '
                '"diff"'
            )
        tasks = benchmark_tasks(path, read_instances(path, "heldout", self.name))
        for task in tasks:
            self.snapshots.checked(task)
        return tasks

    def official_scores(self, task: Task, trajectory: Trajectory) -> Mapping[str, float]:
        """Return SWE-bench's `resolved`, and also SWE-RL's reward if that is the outcome.

        A patch that is judged only by similarity is `resolved` if it equals the gold patch.
        """
        del task
        paid = self.profile.reward.outcome * outcome_scale(self.profile)
        outcome = trajectory.reward["outcome"] / paid
        if self.settings.outcome == "tests":
            return {"resolved": outcome}
        return {"resolved": float(outcome > 1 - _ROUNDING), "swe_rl": outcome}

    def answer_key(self, task: Task) -> Hashable:
        """Return the gold patch; where files are written whole, the files as it leaves them."""
        if self.settings.answer == "diff":
            return task.verifier.gold
        snapshot = self.snapshots.files(task)
        return json_digest(snapshot | dict(gold_changes(task, snapshot)))

    def gold_script(self, task: Task) -> Script:
        """Yield the gold patch: as an answer, or file by file with the tools."""
        if self.settings.answer == "diff":
            yield FinalAnswer(task.verifier.gold[0])
        elif self.settings.answer == "search_replace":
            yield FinalAnswer(written_blocks(task.verifier.gold[0]))
        else:
            for path, content in gold_changes(task, self.snapshots.files(task)).items():
                if content is None:
                    yield _call("delete_file", path=path)
                else:
                    yield _call("write_file", path=path, content=content)
            yield FinalAnswer(DONE)

    def demonstrate(self, task: Task) -> Script:
        """Show the reported function, and the faulty one if it is another; correct the line.

        Without a known fault, or with another form of answer than a tree, it plays `gold_script`.
        """
        fault = cast("dict[str, Any] | None", task.arguments.get("fault"))
        if fault is None or self.settings.answer != "tree":
            yield from self.gold_script(task)
            return
        yield _call("show", name=fault["reported"])
        if fault["reported"] != fault["function"]:
            yield _call("show", name=fault["function"])
        right = fault["right"].strip()
        yield _call("replace_line", path=fault["path"], line=fault["line"], new=right)
        yield FinalAnswer(DONE)

    def answer_settings(self) -> Mapping[str, object]:
        """Return the settings of the tools and of the verifier."""
        elsewhere = {"name", "instances", "snapshots", "repositories", "sandbox"}
        return {"repair": self.settings.model_dump(mode="json", exclude=elsewhere)}


_ROUNDING = 1e-9


class Attempts:
    """The rules of each episode; verdicts are cached, as equal patches get equal verdicts."""

    def __init__(self, family: SoftwareRepair, sandboxes: PoolThread) -> None:
        self._family = family
        self._settings = family.settings
        self._sandboxes = sandboxes
        self._verdicts: dict[tuple[str, str], float] = {}
        self._scanned: set[str] = set()

    def rules_of(self, task: Task) -> EpisodeRules:
        """Return the rules of one episode, with its own files.

        Raises:
            LeakError: the task's repository gives its fix away.
        """
        snapshots = self._family.snapshots
        if task.task_id in self._scanned:
            files = snapshots.files(task)
        else:
            files = snapshots.checked(task)
            self._scanned.add(task.task_id)
        tree = Worktree(files)
        shell = TreeShell(tree, self._sandboxes, self._settings.shell_timeout_s)
        if not self._settings.shell:
            shell = None
        tools = self._family.tools_over(tree, shell)

        async def judged(of: Task, answer: str | None, _turns: TurnResults) -> float:
            return await self._judged(of, files, tree, answer)

        return replace(
            self._family.rules(tools),
            verify=judged,
            ending_tools=frozenset({SUBMIT}),
            on_end=_nothing if shell is None else shell.end,
        )

    async def _judged(
        self, task: Task, files: Mapping[str, str], tree: Worktree, answer: str | None
    ) -> float:
        if answer is None:
            return self._family.outcome_span(self._settings)[0]
        if self._settings.outcome == "swe_rl":
            return await in_own_time(likeness, self._settings, task, files, tree, answer)
        changes = answered_changes(self._settings, files, tree, answer)
        if changes is None:
            return 0.0
        key = (task.task_id, repr(sorted(changes.items())))
        if key not in self._verdicts:
            judging = is_resolved(self._sandboxes, self._settings, task, files, changes)
            self._verdicts[key] = float(await self._sandboxes.run(judging))
        return self._verdicts[key]


_nothing: Callable[[], None] = lambda: None  # noqa: E731


def written_blocks(diff: str) -> str:
    """Return a diff as SWE-RL's blocks of search and replace."""
    blocks: list[str] = []
    for patch in parsed_diff(diff):
        for hunk in patch.hunks:
            old, new = ("".join(side).removesuffix("\n") for side in (hunk.old, hunk.new))
            blocks.append(
                f"```python\n### {patch.path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n"
                ">>>>>>> REPLACE\n```"
            )
    return "\n\n".join(blocks)


def _call(name: str, /, **arguments: str | int) -> ToolCalls:
    return ToolCalls((ToolCall(name=name, arguments=dict(arguments)),))
