"""What a reader of funnel.json wants to know first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from espalier.config import SynthesisConfig
from espalier.rollout.trajectory import Trajectory
from espalier.synthesis.demonstrations import Asked
from espalier.synthesis.funnel import Funnel
from espalier.synthesis.task_making import Split


def summarize(
    questions: Mapping[Split, Sequence[Asked]],
    trajectories: Sequence[Trajectory],
    config: SynthesisConfig,
    hub_kinds: Sequence[str],
    funnel: Funnel,
) -> dict[str, object]:
    """Counts asked for and reached, by split; hops, families, signatures; what is exempt."""
    asked: dict[Split, int] = {
        "train": config.train_tasks,
        "dev": config.dev_tasks,
        "heldout": config.heldout_tasks,
    }
    for split, number in asked.items():
        if len(questions[split]) < number:
            funnel.remark(
                f"{split}: {len(questions[split])} of {number} tasks; the source yields no more"
            )
        elif dry := funnel.counts(f"{split}.families_run_dry"):
            funnel.remark(f"{split}: no more questions of {', '.join(sorted(dry))}; others fill in")
    if len(trajectories) < config.trajectories:
        funnel.remark(
            f"trajectories: {len(trajectories)} of {config.trajectories}; the training tasks that "
            "a teacher can demonstrate are used up"
        )
    return {
        "asked": {**asked, "trajectories": config.trajectories},
        "reached": {split: len(found) for split, found in questions.items()}
        | {"trajectories": len(trajectories)},
        "splits": {split: _mix(found) for split, found in questions.items()},
        "hub_kinds": list(hub_kinds),
        "funnel": funnel.as_dict(),
    }


def _mix(questions: Sequence[Asked]) -> dict[str, dict[str, int]]:
    rows = [question.task.metadata for question in questions]
    return {
        "hops": _counted(str(row.hops) for row in rows),
        "families": _counted(row.family for row in rows),
        "signatures": _counted(row.signature for row in rows if row.signature),
    }


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))
