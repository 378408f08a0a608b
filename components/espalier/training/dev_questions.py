"""The questions that choose a training's weights.

The warm start asks the first dev questions and reinforcement learning the last: where there are
enough for both, none is asked twice. Of a dozen looks at the same questions the warm start keeps
the best, which is partly luck with them. RL begins at these weights, and over the same questions it
would have to beat that luck: of a run of the profile `laptop` whose warm start answered 84 % of its
dev questions and 76 % of the held-out ones, none of RL's weights were kept.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from espalier.config import Profile
from espalier.environments.family import Family
from espalier.records import Task, read_tasks


def dev_questions(
    profile: Profile,
    family: Family[Any],
    inputs: Mapping[str, Path],
    *,
    training: Literal["warm_start", "training"],
) -> list[Task]:
    """As many as the profile says, or all with training tasks under invented names beside them.

    A hundred documents leave ten for dev questions: a few dozen, most of them of one step, where
    training and held-out ones take up to four. Weights that had unlearned two and three steps for
    the sake of four were chosen by them. So training tasks are asked as well, equally many of each
    kind, in worlds of other names (`training.renamed_share`), which nobody answers by heart. Each
    keeps the world that the profile's seed draws for it, other ones in the two trainings.

    Args:
        profile: of the run.
        family: made the tasks.
        inputs: the artifacts `accepted` and `knowledge`.
        training: whose weights they choose.
    """
    tasks, is_first = inputs["accepted"] / "tasks", training == "warm_start"
    count = (profile.warm_start if is_first else profile.training).dev_questions
    known = read_tasks(tasks / "dev.jsonl")
    chosen = known[:count] if is_first else known[-count:]
    share = profile.renamed_training_share
    if not share or len(chosen) == count:  # else many documents are read to find that they are many
        return chosen
    rename = family.task_renaming(inputs["knowledge"], share)
    if rename is None:
        return chosen
    rng = random.Random(f"dev questions/{profile.seed}/{training}")
    by_kind: dict[str, list[Task]] = defaultdict(list)
    for task in read_tasks(tasks / "train.jsonl"):
        by_kind[family.of(task).stratum(task)].append(task)
    shuffled = [rng.sample(alike, len(alike)) for alike in by_kind.values()]
    in_turn = (task for turn in zip_longest(*shuffled) for task in turn if task is not None)
    renamed = ((task, rename(task, rng)) for task in in_turn)
    # in a mixture those of other members keep their names: they are what training plays
    added = (other for task, other in renamed if other is not task)
    return [*chosen, *islice(added, count - len(chosen))]
