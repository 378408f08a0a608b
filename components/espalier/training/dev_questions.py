"""The questions that choose a training's weights.

Each stratum of the family (kind of question, number of steps) has the share of them that it has of
the held-out questions, as far as there are so many: else chance decides how much a rare kind has to
say. The warm start asks the first of a stratum and reinforcement learning the last: where there are
enough for both, none is asked twice. Of a dozen looks at the same questions the warm start keeps
the best, which is partly luck with them. RL begins at these weights, and over the same questions it
would have to beat that luck: of a run of the profile `tiny` whose warm start answered 84 % of its
dev questions and 76 % of the held-out ones, none of RL's weights were kept.
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
from espalier.records import Task, read_tasks

_WIDE_ERROR = 0.05
"""Standard error of EM (0-1) above which dev questions are said to be too few: the gain of a whole
training is often no larger than twice that."""


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


def _of_both_trainings(
    sizes: Mapping[str, int], heldout: Mapping[str, int], counts: tuple[int, int]
) -> tuple[Counter[str], Counter[str]]:
    """How many questions of each stratum the warm start asks, and how many RL asks.

    Args:
        sizes: dev questions of each stratum.
        heldout: held-out questions of each stratum.
        counts: questions that the warm start and RL are to ask.
    """
    if sum(counts) > sum(sizes.values()):
        first, last = (_shared_out(count, sizes, heldout) for count in counts)
        return first, last
    both = _shared_out(sum(counts), sizes, heldout)
    first = _shared_out(counts[0], both, both)
    return first, both - first


def _shared_out(count: int, sizes: Mapping[str, int], wanted: Mapping[str, int]) -> Counter[str]:
    """Share `count` questions out over strata in proportion to `wanted`, none above its size.

    One by one to the stratum that lacks most (Sainte-Lague), and where nothing is wanted of those
    that are left, in proportion to their sizes.
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
    """One line for the log where `count` dev questions are too few to choose weights by, else None.

    Args:
        count: of the questions.
        key: of the profile that asks for more.
    """
    error = 0.5 / math.sqrt(max(1, count))  # at an EM of one half, where it is largest
    if error <= _WIDE_ERROR:
        return None
    return (
        f"warning: {count} dev questions choose the weights, and their EM has a standard error of "
        f"up to {100 * error:.0f} points: smaller gains are found by chance; set {key} and "
        f"synthesis.dev_tasks to {math.ceil((0.5 / _WIDE_ERROR) ** 2)} or more"
    )
