"""The warm start's second round: failed attempts as demonstrations of tasks that they solve."""

from __future__ import annotations

import json
import random
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
    """Return the training tasks to attempt: a seeded draw of those without demonstration."""
    free = [task for task in train if task.task_id not in demonstrated]
    return random.Random(f"{seed}/hindsight/tasks").sample(free, min(config.tasks, len(free)))


def sampled_attempts(
    config: HindsightConfig, tasks: Sequence[Task], roller: TrajectorySampler, seed: int
) -> list[tuple[Task, Trajectory]]:
    """Return attempts of the current policy, each with its task."""
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
    """Drop demonstrations that are too long for an episode of the policy."""
    for demonstration in list(found.demonstrations):
        if len(encode(demonstration).token_ids) > max_tokens:
            found.drop(demonstration.task_id, TOO_LONG)


def keep_share(found: Relabelled, config: HindsightConfig, others: int, seed: int) -> None:
    """Drop randomly drawn demonstrations until they are at most `max_share` of all.

    Args:
        found: the relabelled demonstrations, some of which are dropped.
        config: sets the share.
        others: the teacher's demonstrations.
        seed: seed of the run.
    """
    most = int(others * config.max_share / (1 - config.max_share))
    excess = len(found.demonstrations) - most
    if excess > 0:
        ids = sorted(found.tasks)
        for task_id in random.Random(f"{seed}/hindsight/share").sample(ids, excess):
            found.drop(task_id, TOO_MANY)


class RelabelledStore:
    """Relabelled failures in a stage's work directory, from which a resumed stage continues.

    The payload is written under new names before the index that names it is renamed into place, so
    that a copy of the folder is consistent at any time.
    """

    def __init__(self, directory: Path, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def load(self) -> Relabelled | None:
        """Return what was saved; None without a save of this configuration and inputs."""
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
    """Write the relabelled tasks into the warm start's artifact, where a user can read them."""
    write_relabelled(draft.path / RELABELLED_FOLDER, found)
    draft.rows["relabelled"] = len(found.demonstrations)
