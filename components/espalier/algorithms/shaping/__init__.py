"""Shaping: reward terms beside outcome and format, one module per rule.

episode term   facts of an episode -> its reward
turn term      facts of an episode -> the reward of each of its turns
group term     facts of all attempts at a task -> the reward of each attempt

Each term gives its range. `require_outcome_dominates` adds the ranges up: the outcome must make up
at least half of the reward's whole range. This union lists those that come with the library; a
profile may name others as module:Class.
"""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.shaping.call_shaping import CallShaping
from espalier.algorithms.shaping.calls_cap import CallsCap
from espalier.algorithms.shaping.composition import require_outcome_dominates
from espalier.algorithms.shaping.cosine_length import CosineLength, cosine_progress
from espalier.algorithms.shaping.form import Form
from espalier.algorithms.shaping.format_penalty import FormatPenalty
from espalier.algorithms.shaping.linear_length import LinearLength
from espalier.algorithms.shaping.majority import Majority
from espalier.algorithms.shaping.negative_entropy import NegativeEntropy
from espalier.algorithms.shaping.overlong import Overlong, overlong_penalty
from espalier.algorithms.shaping.repetition import Repetition, repeated_share
from espalier.algorithms.shaping.sigmoid_length import SigmoidLength
from espalier.algorithms.shaping.term import (
    CallFacts,
    EpisodeFacts,
    EpisodeTerm,
    GroupTerm,
    RewardTerm,
    Span,
    TermContext,
    TurnTerm,
)
from espalier.algorithms.shaping.tool_efficiency import ToolEfficiency
from espalier.algorithms.shaping.turn_penalty import TurnPenalty
from espalier.named_classes import OpenTo

TermRule = Annotated[
    CallShaping
    | CallsCap
    | CosineLength
    | Form
    | FormatPenalty
    | LinearLength
    | Majority
    | NegativeEntropy
    | Overlong
    | Repetition
    | SigmoidLength
    | ToolEfficiency
    | TurnPenalty,
    Field(discriminator="name"),
    OpenTo((RewardTerm,)),
]

__all__ = [
    "CallFacts",
    "CallShaping",
    "CallsCap",
    "CosineLength",
    "EpisodeFacts",
    "EpisodeTerm",
    "Form",
    "FormatPenalty",
    "GroupTerm",
    "LinearLength",
    "Majority",
    "NegativeEntropy",
    "Overlong",
    "Repetition",
    "RewardTerm",
    "SigmoidLength",
    "Span",
    "TermContext",
    "TermRule",
    "ToolEfficiency",
    "TurnPenalty",
    "TurnTerm",
    "cosine_progress",
    "overlong_penalty",
    "repeated_share",
    "require_outcome_dominates",
]
