"""The tasks that a server offers, by split and number."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.contract import Environments, View
from espalier.environments.mixins import MakesQuestions
from espalier.records import SPLITS, ArtifactError, Split, Task, open_artifact, read_tasks
from espalier.records.message import ToolSpec
from espalier.wire.openenv import MessageFault, ResetData

_VIEWS: Mapping[Split, View] = {"train": "train", "dev": "dev", "heldout": "full"}
_THEIR_NAMES: Mapping[Split, str] = {"train": "train", "dev": "validation", "heldout": "test"}
"""Our splits -> the names of splits in OpenEnv."""


class Offered(NamedTuple):
    """A task and the environments that play it."""

    task: Task
    environments: Environments


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTasks:
    """All tasks of a server; its answers never contain a task's gold answer."""

    name: str
    """Name of the environment, as clients see it."""
    instructions: str
    specs: tuple[ToolSpec, ...]
    tasks: Mapping[Split, Sequence[Task]]
    environments: Mapping[Split, Environments]
    _by_id: Mapping[str, tuple[Split, Task]] = field(init=False)

    def __post_init__(self) -> None:
        by_id = {task.task_id: (split, task) for split, of in self.tasks.items() for task in of}
        object.__setattr__(self, "_by_id", by_id)

    def chosen(self, asked: ResetData, number: int) -> Offered:
        """Return the task for a reset: by id, by seed, or the `number`-th in turn.

        A seed larger than the number of tasks in the split wraps around.

        Raises:
            MessageFault: the split or task does not exist.
        """
        if asked.task_id is not None:
            if asked.task_id not in self._by_id:
                raise MessageFault(f"task_id: there is no task {asked.task_id!r} here")
            split, task = self._by_id[asked.task_id]
            return Offered(task, self.environments[split])
        split = self.split(asked.split or "train")
        of_split = self.tasks[split]
        if not of_split:
            raise MessageFault(f"split: there is no task of the split {split} here")
        place = number if asked.seed is None else asked.seed
        return Offered(of_split[place % len(of_split)], self.environments[split])

    def split(self, name: str) -> Split:
        """Return our name of a split, given ours or OpenEnv's.

        Raises:
            MessageFault: there is none.
        """
        for split, theirs in _THEIR_NAMES.items():
            if name in (split, theirs):
                return split
        raise MessageFault(f"split: {name!r} is not a split; there are {', '.join(SPLITS)}")

    @property
    def splits(self) -> list[dict[str, str]]:
        """The splits that have tasks, with OpenEnv's names for them."""
        named = _THEIR_NAMES.items()
        return [{"name": split, "type": kind} for split, kind in named if self.tasks[split]]


def public(task: Task) -> dict[str, Any]:
    """Return what a client may know about a task before playing it."""
    return {
        "task_id": task.task_id,
        "split": task.metadata.split,
        "prompt": [{"role": one.role, "content": one.content} for one in task.prompt],
    }


@contextmanager
def tasks_of_run(run_dir: Path, profile: Profile) -> Generator[ServedTasks]:
    """Open the tasks of a run, played with its knowledge.

    Raises:
        ArtifactError: the run has not published knowledge and tasks, or they are damaged.
    """
    open_artifact(run_dir / "knowledge")
    open_artifact(run_dir / "accepted")
    tasks: dict[Split, Sequence[Task]] = {
        split: read_tasks(run_dir / "accepted" / "tasks" / f"{split}.jsonl") for split in SPLITS
    }
    with _served(profile, run_dir / "knowledge", tasks) as served:
        yield served


@contextmanager
def tasks_of_profile(profile: Profile) -> Generator[ServedTasks]:
    """Open tasks that a family generates without knowledge, as many as the profile sets.

    Raises:
        ArtifactError: the family needs a run's knowledge.
    """
    family = family_of(profile)
    if isinstance(family, MakesQuestions):
        raise ArtifactError(
            f"the tasks of {family.name} are made from the knowledge of a run: name one that has "
            "published `knowledge` and `accepted`, as in `espalier environments serve --run RUN`"
        )
    tasks = family.tasks_by_split()
    with _served(profile, Path("no-knowledge"), tasks) as served:
        yield served


@contextmanager
def _served(
    profile: Profile, knowledge: Path, tasks: Mapping[Split, Sequence[Task]]
) -> Generator[ServedTasks]:
    family = family_of(profile)
    with family.environments(knowledge) as environments_over:
        yield ServedTasks(
            name=family.name,
            instructions=family.instructions,
            specs=family.specs,
            tasks=tasks,
            environments={split: environments_over(view) for split, view in _VIEWS.items()},
        )
