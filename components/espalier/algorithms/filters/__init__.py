"""Filters: which groups and tokens train, one module per rule.

group filter   rewards (or advantages) of ragged groups -> `Selection`; `regenerations` tells
               the sampler whether, and how often, to draw other tasks in their place
token filter   loss mask and entropy -> a narrower loss mask

These unions list those that come with the library; a profile may name others as module:Class.
"""

from typing import Annotated

from pydantic import Field

from espalier.algorithms.filters.advantage_gate import AdvantageGate
from espalier.algorithms.filters.difficulty_band import DifficultyBand
from espalier.algorithms.filters.group_min_p import GroupMinP
from espalier.algorithms.filters.group_top_k import GroupTopK
from espalier.algorithms.filters.group_top_k_abs import GroupTopKAbs
from espalier.algorithms.filters.group_top_p import GroupTopP
from espalier.algorithms.filters.high_entropy_tokens import HighEntropyTokens
from espalier.algorithms.filters.rule import GroupFilter, Selection, TokenFilter
from espalier.algorithms.filters.zero_variance import ZeroVariance
from espalier.named_classes import OpenTo

GroupFilterRule = Annotated[
    AdvantageGate
    | DifficultyBand
    | GroupMinP
    | GroupTopK
    | GroupTopKAbs
    | GroupTopP
    | ZeroVariance,
    Field(discriminator="name"),
]

TokenFilterRule = HighEntropyTokens

FilterRule = Annotated[
    GroupFilterRule | TokenFilterRule,
    Field(discriminator="name"),
    OpenTo((GroupFilter, TokenFilter)),
]

__all__ = [
    "AdvantageGate",
    "DifficultyBand",
    "FilterRule",
    "GroupFilter",
    "GroupFilterRule",
    "GroupMinP",
    "GroupTopK",
    "GroupTopKAbs",
    "GroupTopP",
    "HighEntropyTokens",
    "Selection",
    "TokenFilter",
    "TokenFilterRule",
    "ZeroVariance",
]
