"""Counts of drawn and refused rows by reason, apportionment by weight, and the summary of both."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.records import Split, Task


def apportion(weights: Mapping[str, float], total: int) -> dict[str, int]:
    """Split `total` into whole shares in proportion to `weights`, by largest remainders.

    Among equal remainders the earlier key wins, so the result depends on the arguments alone.
    """
    weight_sum = sum(weights.values())
    exact = {key: total * weight / weight_sum for key, weight in weights.items()}
    shares = {key: int(share) for key, share in exact.items()}
    by_remainder = sorted(exact, key=lambda key: shares[key] - exact[key])
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares


class Funnel:
    """Counts by heading and reason, and remarks for the reader of the report."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._remarks: list[str] = []

    def count(self, heading: str, reason: str, number: int = 1) -> None:
        """Add `number` to the count of a reason."""
        self._counts[heading][reason] += number

    def remark(self, line: str) -> None:
        """Add a sentence for the reader of the report."""
        self._remarks.append(line)

    def counts(self, heading: str) -> dict[str, int]:
        """Reason -> count under a heading; empty if nothing was counted."""
        return dict(self._counts[heading]) if heading in self._counts else {}

    @property
    def remarks(self) -> list[str]:
        """All remarks, in order."""
        return list(self._remarks)

    def as_dict(self) -> dict[str, object]:
        """Headings, each with its reasons, most frequent first."""
        headings = {
            heading: dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
            for heading, counts in sorted(self._counts.items())
        }
        return {**headings, "remarks": self.remarks}


def summarize(
    tasks: Mapping[Split, Sequence[Task]],
    groups_of: Callable[[Task], Mapping[str, str]],
    demonstrations: int,
    config: SynthesisConfig,
    hub_kinds: Sequence[str],
    funnel: Funnel,
) -> dict[str, object]:
    """The content of funnel.json: requested and reached counts, the mix by group, the funnel."""
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
    """Number of tasks by each grouping of the family, and by pattern."""
    groups = [groups_of(task) for task in tasks]
    names = dict.fromkeys(name for found in groups for name in found)
    mix = {name: _counted(found[name] for found in groups if name in found) for name in names}
    patterns = (task.metadata.pattern for task in tasks)
    return {**mix, "patterns": _counted(pattern for pattern in patterns if pattern)}


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))
