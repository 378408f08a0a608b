"""The outcome of an episode: hidden tests on its patch, or similarity to the gold patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from espalier.records import DataError, Task
from espalier.rewards.comparing import Comparers
from espalier.rewards.swe_rl import (
    BAD_FORMAT,
    BlockError,
    changed_files,
    search_replace_blocks,
)
from espalier.sandbox.choice import PoolThread
from espalier_environments.software_repair.case_judge import passed_cases
from espalier_environments.software_repair.config import SoftwareRepairConfig
from espalier_environments.software_repair.diffs import DiffError, parsed_diff
from espalier_environments.software_repair.instances import instance_patches, load_snapshot
from espalier_environments.software_repair.leaks import fix_pairs, refuse_leaks
from espalier_environments.software_repair.protected import judged_files
from espalier_environments.software_repair.repositories import Case
from espalier_environments.software_repair.test_judge import files_under_test, passed_tests
from espalier_environments.software_repair.test_runner import holders, split_test
from espalier_environments.software_repair.worktree import Worktree

Changes = Mapping[str, str | None]
"""Path -> new content; None if the file was deleted."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The folder with the repositories of tasks."""

    folder: Path | None
    ignored_leaks: Sequence[str] = ()

    def files(self, task: Task) -> dict[str, str]:
        """Return path -> content of the task's repository; empty if no folder was named.

        Raises:
            DataError: the snapshot of the task's instance is missing.
        """
        if "files" in task.arguments:
            return cast("dict[str, str]", task.arguments["files"])
        if self.folder is None:
            return {}
        return load_snapshot(self.folder, str(task.arguments["instance_id"]))

    def checked(self, task: Task) -> dict[str, str]:
        """Return the files after scanning them for anything that gives the fix away.

        Raises:
            LeakError: something was found, which the message names.
            DataError: as `files`, or the task's own patches do not apply to the files.
        """
        files = self.files(task)
        if not files:
            return files
        if "files" in task.arguments:
            calls = [
                (f"{case.function}({case.arguments})", case.returned) for case in cases_of(task)
            ]
            patches = parsed_diff(task.verifier.gold[0])
        else:
            calls = []
            gold, tests = instance_patches(task)
            patches = (*gold, *tests)
            for what, part in (("patch", gold), ("test_patch", tests)):
                try:
                    Worktree(files).apply(part)
                except DiffError as error:
                    raise DataError(
                        f"{task.arguments['instance_id']}: its {what} does not apply to the "
                        f"snapshot, which is of another commit ({error})"
                    ) from error
            _refuse_unknown_tests(task, files_under_test(files, {}, tests))
        refuse_leaks(
            f"the repository of task {task.task_id}",
            files,
            fix_pairs(patches),
            tests=calls,
            ignored=self.ignored_leaks,
        )
        return files


def _refuse_unknown_tests(task: Task, files: Mapping[str, str]) -> None:
    arguments = cast("dict[str, Any]", task.arguments)
    for name in (*arguments["fail_to_pass"], *arguments["pass_to_pass"]):
        if not split_test(name)[0] and not holders(name, files):
            raise DataError(
                f"{arguments['instance_id']}: no test file has {name!r}, neither as the name of a "
                "test nor as a docstring, so no patch can pass it; leave the instance out"
            )


def cases_of(task: Task) -> list[Case]:
    """Return the hidden calls of a task over a generated repository."""
    return [Case(*row) for row in cast("list[list[str]]", task.arguments["cases"])]


def gold_changes(task: Task, snapshot: Mapping[str, str]) -> Changes:
    """Return the files that the gold patch changes, with their new content."""
    tree = Worktree(snapshot)
    tree.apply(parsed_diff(task.verifier.gold[0]))
    return tree.changed


def answered_changes(
    settings: SoftwareRepairConfig, snapshot: Mapping[str, str], tree: Worktree, answer: str
) -> Changes | None:
    """Return the changes in the tree or in the answer; None if the answer is malformed.

    An empty search text fills a new file; upstream's rule alone puts it before every line of one.
    """
    try:
        if settings.answer == "diff":
            tree = Worktree(snapshot)
            tree.apply(parsed_diff(answer))
        elif settings.answer == "search_replace":
            tree = Worktree(snapshot)
            blocks = search_replace_blocks(answer, tags=False)
            as_upstream = settings.outcome == "swe_rl"
            changes = changed_files(snapshot, blocks, prefixes_lines=as_upstream)
            for path, content in changes.items():
                tree.write(path, content)
    except (DiffError, BlockError):
        return None
    return tree.changed


def likeness(
    settings: SoftwareRepairConfig,
    task: Task,
    snapshot: Mapping[str, str],
    tree: Worktree,
    answer: str,
) -> float:
    """Return SWE-RL's reward, -1 to 1; diffs are compared with the gold diff as text.

    A patch that changes nothing, or is not compared within its time, is worth as much as one that
    cannot be read: upstream refuses an answer without blocks.
    """
    if settings.answer == "diff":
        try:
            patches = parsed_diff(answer)
        except DiffError:
            return BAD_FORMAT
        if not patches:
            return BAD_FORMAT
        gold = {patch.path: patch.text for patch in parsed_diff(task.verifier.gold[0])}
        return _compared(None, gold, {patch.path: patch.text for patch in patches})
    changes = answered_changes(settings, snapshot, tree, answer)
    if changes is None or (settings.answer == "tree" and not changes):
        return BAD_FORMAT
    gold = {path: content or "" for path, content in gold_changes(task, snapshot).items()}
    after = {path: content or "" for path, content in changes.items()}
    before = {path: snapshot[path] for path in {*gold, *after} if path in snapshot}
    return _compared(before, gold, after)


@cache
def _comparers() -> Comparers:
    return Comparers("patch", within_s=_COMPARE_WITHIN_S)


_COMPARE_WITHIN_S = 60
"""Limit of processor time: two diffs of 20,000 characters of code, the most that is compared, take
up to half of it."""


def _compared(
    before: Mapping[str, str] | None, gold: Mapping[str, str], after: Mapping[str, str]
) -> float:
    reward: float | None = _comparers().compare(before, gold, after)
    return BAD_FORMAT if reward is None else reward


async def is_resolved(
    sandboxes: PoolThread,
    settings: SoftwareRepairConfig,
    task: Task,
    snapshot: Mapping[str, str],
    changes: Changes,
) -> bool:
    """Return whether every hidden test passes in a judging sandbox; runs on the pool's loop.

    Raises:
        EnvironmentLostError, ProgramBrokeSandboxError: as `sandbox_losses`.
    """
    if not changes:
        return False  # nothing was changed, and some tests fail in the snapshot
    within_s = settings.tests_timeout_s
    if "files" in task.arguments:
        files = judged_files(snapshot, changes)
        async with sandboxes.claim(judging=True) as sandbox:
            return all(await passed_cases(sandbox, files, cases_of(task), within_s))
    _, test_patch = instance_patches(task)
    files = files_under_test(snapshot, changes, test_patch)
    arguments = cast("dict[str, Any]", task.arguments)
    tests = [*arguments["fail_to_pass"], *arguments["pass_to_pass"]]
    async with sandboxes.claim(judging=True) as sandbox:
        patched = [patch.path for patch in test_patch]
        passed = await passed_tests(sandbox, files, tests, within_s, patched=patched)
    return all(passed.values())
