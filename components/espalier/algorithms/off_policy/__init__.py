"""Off-policy corrections, one module per rule.

This union lists those that come with the library; a profile may name others as module:Class.
"""

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
from espalier.named_classes import OpenTo

OffPolicyRule = Annotated[
    ImportanceWeights | Rejection | OffPolicySequenceMask,
    Field(discriminator="name"),
    OpenTo((CorrectionRule,)),
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
