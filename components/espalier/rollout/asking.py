"""The agent of a finished run: a policy, with the environments and the tasks of the run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from espalier.config import Profile
from espalier.environments import EnvironmentsOver, family_of
from espalier.environments.memory import remembering
from espalier.records import SPLITS, DataError, Task, open_artifact, read_tasks
from espalier.rollout.roller import Roller


class RunTasks:
    """The tasks of a run, and tasks made of questions that somebody asks."""

    def __init__(self, profile: Profile, tasks: Mapping[str, Task]) -> None:
        """Store the run's profile and its tasks by id."""
        self._family = family_of(profile)
        self._tasks = tasks

    @classmethod
    def read(cls, run_dir: Path, profile: Profile) -> Self:
        """Read the accepted tasks of a run, held-out ones first.

        Raises:
            ArtifactError: the run has not published tasks, or they are damaged.
        """
        accepted = run_dir / "accepted"
        open_artifact(accepted)
        return cls(
            profile,
            {
                task.task_id: task
                for split in reversed(SPLITS)
                for task in read_tasks(accepted / "tasks" / f"{split}.jsonl")
            },
        )

    def of_question(self, question: str) -> Task:
        """A task that consists of a question; it has no gold answer.

        Raises:
            DataError: the run's tasks have a state of their own, which a question lacks; or the
                question holds bytes that are no text.
        """
        if any("\ud800" <= char <= "\udfff" for char in question):
            raise DataError("the question holds bytes that are no UTF-8; type or encode it anew")
        task = self._family.chat_task(question)
        others = [
            other
            for other in self._tasks.values()
            if (other.environment, other.metadata.split) == (task.environment, "heldout")
        ]
        # every task may have the same arguments, such as an index to search
        if not task.arguments and any(one.arguments != others[0].arguments for one in others):
            raise DataError(
                f"a task of {task.environment} is more than its question: it has a state of its "
                "own. Play one of the run's tasks: espalier chat RUN --task "
                f"{others[0].task_id}"
            )
        return task

    def named(self, task_id: str) -> Task:
        """A task of the run, of any split.

        Raises:
            DataError: the run has no such task.
        """
        if task_id not in self._tasks:
            raise DataError(
                f"the run has no task {task_id}. Its tasks are in accepted/tasks, "
                f"{next(iter(self._tasks), 'none')} for one"
            )
        return self._tasks[task_id]


class RunAgent(NamedTuple):
    """A policy that plays in the environments of a run, and the tasks that it plays."""

    roller: Roller
    tasks: RunTasks


def run_environments(run_dir: Path, profile: Profile) -> AbstractContextManager[EnvironmentsOver]:
    """Environments of the run's family, with the memory that the run's policies used."""
    family = remembering(profile, run_dir / "accepted")
    return family.environments(run_dir / "knowledge")


@contextmanager
def opened_agent(run_dir: Path, profile: Profile, policy_dir: Path) -> Generator[RunAgent]:
    """A policy in the environments of a run, which exist while the block runs.

    Args:
        run_dir: the run that gives knowledge and tasks.
        profile: the run's profile; it gives environment, engine and episode limits.
        policy_dir: any model directory of Hugging Face.

    Raises:
        ArtifactError: the run has not published knowledge and tasks, or they are damaged.
        PolicyError: not a policy directory.
    """
    open_artifact(run_dir / "knowledge")
    tasks = RunTasks.read(run_dir, profile)
    with run_environments(run_dir, profile) as environments_over:
        yield RunAgent(Roller.open(policy_dir, environments_over("full"), profile), tasks)
