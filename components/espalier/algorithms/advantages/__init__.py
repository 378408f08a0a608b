"""Advantages: how reward becomes credit, one module per rule.

This union lists those that come with the library; a profile may name others as module:Class.
"""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.advantages.dr_grpo import DrGrpo
from espalier.algorithms.advantages.gae import Gae
from espalier.algorithms.advantages.gdpo import Gdpo
from espalier.algorithms.advantages.gpg import Gpg
from espalier.algorithms.advantages.grpo import Grpo
from espalier.algorithms.advantages.grpo_length_penalty import GrpoLengthPenalty
from espalier.algorithms.advantages.grpo_pass_k import GrpoPassK
from espalier.algorithms.advantages.length_adaptive_gae import LengthAdaptiveGae
from espalier.algorithms.advantages.max_rl import MaxRl
from espalier.algorithms.advantages.opo import Opo
from espalier.algorithms.advantages.otb import OptimalTokenBaseline
from espalier.algorithms.advantages.reinforce_plus_plus import ReinforcePlusPlus
from espalier.algorithms.advantages.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline
from espalier.algorithms.advantages.remax import ReMax
from espalier.algorithms.advantages.rloo import Rloo
from espalier.algorithms.advantages.spo import Spo
from espalier.algorithms.advantages.turn_discounted import TurnDiscounted
from espalier.algorithms.advantages.turn_gae import TurnGae
from espalier.algorithms.batch import CreditRule
from espalier.algorithms.off_policy import VTrace
from espalier.named_classes import OpenTo

AdvantageRule = Annotated[
    DrGrpo
    | Gae
    | Gdpo
    | Gpg
    | Grpo
    | GrpoLengthPenalty
    | GrpoPassK
    | LengthAdaptiveGae
    | MaxRl
    | Opo
    | OptimalTokenBaseline
    | ReMax
    | ReinforcePlusPlus
    | ReinforcePlusPlusBaseline
    | Rloo
    | Spo
    | TurnDiscounted
    | TurnGae
    | VTrace,
    Field(discriminator="name"),
    OpenTo((CreditRule,)),
]

__all__ = [
    "AdvantageRule",
    "DrGrpo",
    "Gae",
    "Gdpo",
    "Gpg",
    "Grpo",
    "GrpoLengthPenalty",
    "GrpoPassK",
    "LengthAdaptiveGae",
    "MaxRl",
    "Opo",
    "OptimalTokenBaseline",
    "ReMax",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Rloo",
    "Spo",
    "TurnDiscounted",
    "TurnGae",
]
