"""Disk space that a run leaves used, and that it also needs while it runs."""

from __future__ import annotations

from typing import NamedTuple

from espalier.config import Profile, reads_knowledge
from espalier.planning.durations import num_tasks
from espalier.planning.figures import Figures
from espalier.planning.sizes import PolicySize

_MIB = 1 << 20
_F32 = 4
_TASK_BYTES = 1000
"""Size of a task as a JSON line; GeoNames and generated families have 600 to 1,100."""
_TASK_COPIES = 3  # synthetic, accepted, curriculum
_TRAJECTORY_BYTES = 12
"""Size of a trajectory's token in parquet, including the messages."""
_POLICY_COPIES = 5  # base, pretrained, warm, trained; MLflow's
_CHECKPOINTS = 2  # the newest, and the one being written
_KNOWLEDGE_MIB = 60.0
"""Triples, documents and indexes of GeoNames; an own folder takes a few times its size."""
_REPORT_MIB = 2.0


class Disk(NamedTuple):
    """Disk space of a run, MiB."""

    kept: float
    """Artifacts, report and the registered version."""
    working: float
    """Checkpoints, which are deleted when their stage is published."""

    @property
    def peak(self) -> float:
        """Sum of `kept` and `working`."""
        return self.kept + self.working


def disk_of(profile: Profile, size: PolicySize, figures: Figures) -> Disk:
    """Disk space of a run; MLflow's logs add a few MiB."""
    weights, trained = _F32 * size.parameters, _F32 * size.trained
    episodes = 2 * profile.synthesis.trajectories * figures.demonstration_tokens
    rows = num_tasks(profile) * _TASK_COPIES * _TASK_BYTES + episodes * _TRAJECTORY_BYTES
    kept = (_POLICY_COPIES * weights + rows) / _MIB + _REPORT_MIB
    if reads_knowledge(profile.environment):
        kept += _KNOWLEDGE_MIB
    numbers = 4.0  # weights, AdamW's two moments (Muon keeps one), the best weights so far
    if profile.training.algorithm.critic is not None:
        numbers += 3.0
    return Disk(kept, _CHECKPOINTS * numbers * trained / _MIB)
