"""MLflow: runs, model versions with their digests, the promotion gate, rollback.

espalier promote espalier-search-agent        runs the gate, and moves @champion if it passes
espalier load espalier-search-agent@champion --out DIR
"""

from espalier.registry.connection import TrackingTarget, tracking_target
from espalier.registry.model import (
    ModelVersion,
    RegisteredModel,
    champion_policy,
    load_version,
    versions,
)
from espalier.registry.promotion import GateComparison, Promotion, PromotionGate, promote, rollback
from espalier.registry.tracker import MlflowTracker
from espalier.registry.tracking import (
    ParentRun,
    mlflow_run,
    open_parent_run,
    stage_tracking,
    tracker_from_environment,
)

__all__ = [
    "GateComparison",
    "MlflowTracker",
    "ModelVersion",
    "ParentRun",
    "Promotion",
    "PromotionGate",
    "RegisteredModel",
    "TrackingTarget",
    "champion_policy",
    "load_version",
    "mlflow_run",
    "open_parent_run",
    "promote",
    "rollback",
    "stage_tracking",
    "tracker_from_environment",
    "tracking_target",
    "versions",
]
