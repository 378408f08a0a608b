"""Off-policy corrections, one module per rule; this union is the only list."""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.off_policy.correction import (
    Correction,
    CorrectionBatch,
    CorrectionRule,
    correct,
    mismatch_metrics,
)
from espalier.algorithms.off_policy.importance import ImportanceWeights
from espalier.algorithms.off_policy.rejection import Rejection
from espalier.algorithms.off_policy.sequence_mask import OffPolicySequenceMask
from espalier.algorithms.off_policy.v_trace import VTrace

OffPolicyRule = Annotated[
    ImportanceWeights | Rejection | OffPolicySequenceMask, Field(discriminator="name")
]

__all__ = [
    "Correction",
    "CorrectionBatch",
    "CorrectionRule",
    "ImportanceWeights",
    "OffPolicyRule",
    "OffPolicySequenceMask",
    "Rejection",
    "VTrace",
    "correct",
    "mismatch_metrics",
]
