"""The list of all kinds of objects that stages can run as.

To add a kind, add a module like `ray_job` or `train_job`, list it here, and add its value of
`kubernetes.trainer`.
"""

from __future__ import annotations

from espalier.cluster.objects.launched import LaunchedKind
from espalier.cluster.objects.ray_job import RAY_JOB
from espalier.cluster.objects.train_job import TRAIN_JOB
from espalier.config import KubernetesConfig

LAUNCHED_KINDS = (RAY_JOB, TRAIN_JOB)


def launched_kind(stage: str, settings: KubernetesConfig) -> LaunchedKind | None:
    """The kind of object that the stage's pod launches and watches; None if it runs the stage."""
    for kind in LAUNCHED_KINDS:
        if settings.trainer == kind.trainer and stage in kind.stages:
            return kind
    return None
