"""The questions that choose a training's weights.

Each stratum of the family (kind of question, number of steps) has the same share of the dev
questions as of the held-out questions, as far as there are enough: otherwise the weight of a rare
kind would depend on chance. The warm start uses the first questions of a stratum and reinforcement
learning the last, so that no question is used twice where there are enough for both.

The two need different questions. The warm start keeps the best of a dozen evaluations on its own,
which is partly luck. RL begins with these weights, and on the same questions it would have to beat
that luck: in one run of the profile `tiny`, whose warm start answered 84 % of its dev questions and
76 % of the held-out ones, none of RL's weights were kept.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

from espalier.config import Profile
from espalier.environments.family import Family
from espalier.environments.mixins import Renames
from espalier.records import Task, read_tasks

_WIDE_ERROR = 0.05
"""Standard error of EM (0-1) above which a warning says that there are too few dev questions: the
gain of a whole training is often no larger than twice that."""


def dev_questions(
    profile: Profile,
    family: Family[Any],
    inputs: Mapping[str, Path],
    *,
    training: Literal["warm_start", "training"],
) -> list[Task]:
    """Return the profile's number of dev questions, or all, with renamed training tasks added.

    A hundred documents leave ten for dev questions: a few dozen, most of them of one step, while
    training and held-out questions take up to four. They once chose weights that had unlearned two
    and three steps in favour of four. So training tasks are used as well, equally many of each
    kind, in worlds with other names (`training.renamed_share`), which cannot be answered from
    memory. Each keeps the world that the profile's seed draws for it; the two trainings draw
    different ones.

    Args:
        profile: profile of the run.
        family: the family that made the tasks.
        inputs: the artifacts `accepted` and `knowledge`.
        training: the training whose weights the questions choose.
    """
    tasks, is_first = inputs["accepted"] / "tasks", training == "warm_start"
    counts = profile.warm_start.dev_questions, profile.training.dev_questions
    count = counts[0] if is_first else counts[1]
    by_stratum: dict[str, list[Task]] = defaultdict(list)
    for task in read_tasks(tasks / "dev.jsonl"):
        by_stratum[family.stratum(task)].append(task)
    heldout = Counter(map(family.stratum, read_tasks(tasks / "heldout.jsonl")))
    sizes = {stratum: len(alike) for stratum, alike in by_stratum.items()}
    first, last = _of_both_trainings(sizes, heldout, counts)
    chosen = [
        task
        for stratum, alike in by_stratum.items()
        for task in (alike[: first[stratum]] if is_first else alike[len(alike) - last[stratum] :])
    ]
    share = profile.renamed_training_share
    if (
        not share or len(chosen) == count
    ):  # a bound: otherwise many documents are read just to count them
        return chosen
    rename = (
        family.task_renaming(inputs["knowledge"], share) if isinstance(family, Renames) else None
    )
    if rename is None:
        return chosen
    rng = random.Random(f"dev questions/{profile.seed}/{training}")
    by_kind: dict[str, list[Task]] = defaultdict(list)
    for task in read_tasks(tasks / "train.jsonl"):
        by_kind[family.of(task).stratum(task)].append(task)
    shuffled = [rng.sample(alike, len(alike)) for alike in by_kind.values()]
    in_turn = (task for turn in zip_longest(*shuffled) for task in turn if task is not None)
    renamed = ((task, rename(task, rng)) for task in in_turn)
    # in a mixture, tasks of other members keep their names, as they do in training
    added = (other for task, other in renamed if other is not task)
    return [*chosen, *islice(added, count - len(chosen))]


def _of_both_trainings(
    sizes: Mapping[str, int], heldout: Mapping[str, int], counts: tuple[int, int]
) -> tuple[Counter[str], Counter[str]]:
    """Return how many questions of each stratum the warm start uses, and how many RL uses.

    Args:
        sizes: number of dev questions of each stratum.
        heldout: number of held-out questions of each stratum.
        counts: number of questions for the warm start, and for RL.
    """
    if sum(counts) > sum(sizes.values()):
        first, last = (_shared_out(count, sizes, heldout) for count in counts)
        return first, last
    both = _shared_out(sum(counts), sizes, heldout)
    first = _shared_out(counts[0], both, both)
    return first, both - first


def _shared_out(count: int, sizes: Mapping[str, int], wanted: Mapping[str, int]) -> Counter[str]:
    """Divide `count` questions among strata in proportion to `wanted`, none above its size.

    They go one by one to the stratum that lacks most (Sainte-Lague); once only strata with nothing
    wanted are left, in proportion to their sizes.
    """
    taken: Counter[str] = Counter()
    for _ in range(min(count, sum(sizes.values()))):
        lacking = [
            (
                wanted.get(stratum, 0) / (2 * taken[stratum] + 1),
                size / (2 * taken[stratum] + 1),
                stratum,
            )
            for stratum, size in sizes.items()
            if taken[stratum] < size
        ]
        taken[max(lacking)[2]] += 1
    return taken


def few_questions_line(count: int, key: str) -> str | None:
    """Return a warning if `count` dev questions are too few to choose weights by, else None.

    Args:
        count: number of questions.
        key: the profile's key that sets it.
    """
    error = 0.5 / math.sqrt(max(1, count))  # the standard error is largest at an EM of one half
    if error <= _WIDE_ERROR:
        return None
    return (
        f"warning: {count} dev questions choose the weights, and their EM has a standard error of "
        f"up to {100 * error:.0f} points: smaller gains may be chance; set {key} and "
        f"synthesis.dev_tasks to {math.ceil((0.5 / _WIDE_ERROR) ** 2)} or more"
    )
