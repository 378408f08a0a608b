"""The questions that choose a training's weights."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from espalier.config import Profile
from espalier.environments.family import Family
from espalier.records import Task, read_tasks


def dev_questions(
    profile: Profile, family: Family[Any], inputs: Mapping[str, Path], *, count: int
) -> list[Task]:
    """The first `count` dev questions, or all with training tasks under invented names beside them.

    A hundred documents leave ten for dev questions: a few dozen, most of them of one step, where
    training and held-out ones take up to four. Weights that had unlearned two and three steps for
    the sake of four were chosen by them. So training tasks are asked as well, equally many of each
    kind, in worlds of other names (`training.renamed_share`), which nobody answers by heart. Each
    keeps the world that the profile's seed draws for it.

    Args:
        profile: of the run.
        family: made the tasks.
        inputs: the artifacts `accepted` and `knowledge`.
        count: as many at most.
    """
    tasks = inputs["accepted"] / "tasks"
    chosen = read_tasks(tasks / "dev.jsonl")[:count]
    share = profile.renamed_training_share
    if not share or len(chosen) == count:  # else many documents are read to find that they are many
        return chosen
    rename = family.task_renaming(inputs["knowledge"], share)
    if rename is None:
        return chosen
    rng = random.Random(f"dev questions/{profile.seed}")
    by_kind: dict[str, list[Task]] = defaultdict(list)
    for task in read_tasks(tasks / "train.jsonl"):
        by_kind[family.of(task).stratum(task)].append(task)
    shuffled = [rng.sample(alike, len(alike)) for alike in by_kind.values()]
    in_turn = (task for turn in zip_longest(*shuffled) for task in turn if task is not None)
    renamed = ((task, rename(task, rng)) for task in in_turn)
    # in a mixture those of other members keep their names: they are what training plays
    added = (other for task, other in renamed if other is not task)
    return [*chosen, *islice(added, count - len(chosen))]
