"""The second round of the warm start: failed attempts as demonstrations of what they solved."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence, Set
from pathlib import Path

from espalier.chain import RELABELLED_FOLDER
from espalier.config import HindsightConfig
from espalier.environments.hindsight import Relabelled
from espalier.records import Draft, Task, write_tasks, write_whole
from espalier.records.task import read_records
from espalier.records.trajectory import Trajectory, read_trajectories, write_trajectories
from espalier.rollout.roller import TrajectorySampler
from espalier.training.packing import TrainingSequence

TOO_LONG = "longer_than_an_episode"
TOO_MANY = "above_max_share"
_INDEX = "hindsight.json"


def attempted_tasks(
    config: HindsightConfig, train: Sequence[Task], demonstrated: Set[str], seed: int
) -> list[Task]:
    """The training tasks that the policy attempts: drawn by the seed, none with a demonstration."""
    free = [task for task in train if task.task_id not in demonstrated]
    return random.Random(f"{seed}/hindsight/tasks").sample(free, min(config.tasks, len(free)))


def sampled_attempts(
    config: HindsightConfig, tasks: Sequence[Task], roller: TrajectorySampler, seed: int
) -> list[tuple[Task, Trajectory]]:
    """Attempts at tasks by the current policy, each with its task."""
    sampled = roller.roll_out(
        tasks,
        samples=config.attempts,
        temperature=config.temperature,
        seed=random.Random(f"{seed}/hindsight/attempts").getrandbits(48),
    )
    asked = [task for task in tasks for _ in range(config.attempts)]
    return list(zip(asked, sampled, strict=True))


def drop_too_long(
    found: Relabelled, encode: Callable[[Trajectory], TrainingSequence], max_tokens: int
) -> None:
    """Drop demonstrations that no episode of the policy could hold."""
    for demonstration in list(found.demonstrations):
        if len(encode(demonstration).token_ids) > max_tokens:
            found.drop(demonstration.task_id, TOO_LONG)


def keep_share(found: Relabelled, config: HindsightConfig, others: int, seed: int) -> None:
    """Drop demonstrations, drawn by the seed, until they are `max_share` of all at most.

    Args:
        found: what is dropped from.
        config: says the share.
        others: the teacher's demonstrations.
        seed: of the run.
    """
    most = int(others * config.max_share / (1 - config.max_share))
    excess = len(found.demonstrations) - most
    if excess > 0:
        ids = sorted(found.tasks)
        for task_id in random.Random(f"{seed}/hindsight/share").sample(ids, excess):
            found.drop(task_id, TOO_MANY)


class RelabelledStore:
    """Relabelled failures in a stage's work directory, from which a resumed stage goes on.

    The payload is written under names of its own before the index that names it is renamed into
    place: a copy of the folder is whole at any time.
    """

    def __init__(self, directory: Path, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def load(self) -> Relabelled | None:
        """What was saved; None if there is nothing of the same configuration and inputs."""
        index = self._directory / _INDEX
        if not index.is_file():
            return None
        saved = json.loads(index.read_text(encoding="utf-8"))
        if saved["identity"] != self._identity:
            return None
        folder = self._folder
        tasks = read_records(folder / "tasks.jsonl", Task)
        return Relabelled(
            {task.task_id: task for task in tasks},
            read_trajectories(folder / "trajectories.parquet"),
            Counter(saved["unused"]),
        )

    @property
    def _folder(self) -> Path:
        return self._directory / f"{RELABELLED_FOLDER}-{self._identity[:12]}"

    def save(self, found: Relabelled) -> None:
        """Save, atomically."""
        write_relabelled(self._folder, found)
        content = {"identity": self._identity, "unused": found.unused}
        write_whole(self._directory / _INDEX, json.dumps(content))


def write_relabelled(folder: Path, found: Relabelled) -> None:
    """Write tasks.jsonl, trajectories.parquet and, in counts.json, why others were not used."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tasks(folder / "tasks.jsonl", found.tasks.values())
    write_trajectories(folder / "trajectories.parquet", found.demonstrations)
    figures = {
        "relabelled": len(found.demonstrations),
        "unused": dict(sorted(found.unused.items())),
    }
    (folder / "counts.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def publish_relabelled(draft: Draft, found: Relabelled) -> None:
    """Put them into the artifact of the warm start, where they can be looked at."""
    write_relabelled(draft.path / RELABELLED_FOLDER, found)
    draft.rows["relabelled"] = len(found.demonstrations)


def keep_relabelled_tasks(draft: Draft, warm_policy: Path) -> None:
    """Put the relabelled tasks of a warm start into the artifact of what was trained from it."""
    tasks = warm_policy / RELABELLED_FOLDER / "tasks.jsonl"
    if tasks.is_file():
        (draft.path / RELABELLED_FOLDER).mkdir()
        shutil.copy(tasks, draft.path / RELABELLED_FOLDER)
