"""Presets: combinations of rules by the name of the paper that they come from."""

from espalier.algorithms.presets.expansion import DEFAULT_PRESET, PRESETS, expanded
from espalier.algorithms.presets.preset import Preset

__all__ = ["DEFAULT_PRESET", "PRESETS", "Preset", "expanded"]
