"""Policy losses, one module per rule.

This union lists those that come with the library; a profile may name others as module:Class.
"""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.losses.cispo import Cispo
from espalier.algorithms.losses.clip_cov import ClipCov
from espalier.algorithms.losses.dpo import Dpo
from espalier.algorithms.losses.dppo import Dppo
from espalier.algorithms.losses.gmpo import Gmpo
from espalier.algorithms.losses.gspo import Gspo
from espalier.algorithms.losses.ipo import Ipo
from espalier.algorithms.losses.kl_cov import KlCov
from espalier.algorithms.losses.ppo_clip import PpoClip
from espalier.algorithms.losses.reinforce import Reinforce
from espalier.algorithms.losses.rule import PolicyLossRule
from espalier.algorithms.losses.sapo import Sapo
from espalier.algorithms.losses.sequence_ppo_clip import SequencePpoClip
from espalier.algorithms.losses.value import ValueLoss
from espalier.algorithms.losses.vespo import Vespo
from espalier.named_classes import OpenTo

LossRule = Annotated[
    PpoClip
    | Gspo
    | SequencePpoClip
    | Gmpo
    | Cispo
    | Sapo
    | Reinforce
    | KlCov
    | ClipCov
    | Vespo
    | Dppo
    | Ipo
    | Dpo,
    Field(discriminator="name"),
    OpenTo((PolicyLossRule,)),
]

__all__ = [
    "Cispo",
    "ClipCov",
    "Dpo",
    "Dppo",
    "Gmpo",
    "Gspo",
    "Ipo",
    "KlCov",
    "LossRule",
    "PolicyLossRule",
    "PpoClip",
    "Reinforce",
    "Sapo",
    "SequencePpoClip",
    "ValueLoss",
    "Vespo",
]
