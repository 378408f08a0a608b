"""What a reader of funnel.json wants to know first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.records import Split, Task
from espalier.synthesis.funnel import Funnel


def summarize(
    tasks: Mapping[Split, Sequence[Task]],
    groups_of: Callable[[Task], Mapping[str, str]],
    demonstrations: int,
    config: SynthesisConfig,
    hub_kinds: Sequence[str],
    funnel: Funnel,
) -> dict[str, object]:
    """Counts asked for and reached, by split; groups and patterns; what is exempt."""
    asked: dict[Split, int] = {
        "train": config.train_tasks,
        "dev": config.dev_tasks,
        "heldout": config.heldout_tasks,
    }
    for split, number in asked.items():
        if len(tasks[split]) < number:
            funnel.remark(
                f"{split}: {len(tasks[split])} of {number} tasks; the source yields no more"
            )
        elif dry := funnel.counts(f"{split}.families_run_dry"):
            funnel.remark(f"{split}: no more questions of {', '.join(sorted(dry))}; others fill in")
    if demonstrations < config.trajectories:
        funnel.remark(
            f"trajectories: {demonstrations} of {config.trajectories}; the training tasks that "
            "a teacher can demonstrate are used up"
        )
    return {
        "asked": {**asked, "trajectories": config.trajectories},
        "reached": {split: len(found) for split, found in tasks.items()}
        | {"trajectories": demonstrations},
        "splits": {split: _mix(found, groups_of) for split, found in tasks.items()},
        "hub_kinds": list(hub_kinds),
        "funnel": funnel.as_dict(),
    }


def _mix(
    tasks: Sequence[Task], groups_of: Callable[[Task], Mapping[str, str]]
) -> dict[str, dict[str, int]]:
    """Tasks by each of the family's groupings, and by pattern."""
    groups = [groups_of(task) for task in tasks]
    names = dict.fromkeys(name for found in groups for name in found)
    mix = {name: _counted(found[name] for found in groups if name in found) for name in names}
    patterns = (task.metadata.pattern for task in tasks)
    return {**mix, "patterns": _counted(pattern for pattern in patterns if pattern)}


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))
