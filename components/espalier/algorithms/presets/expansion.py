"""From the name of a preset, and what the profile says besides, to all settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from espalier.algorithms.presets.critic_free import CRITIC_FREE
from espalier.algorithms.presets.preset import Preset
from espalier.algorithms.presets.selective import SELECTIVE
from espalier.algorithms.presets.with_critic import WITH_CRITIC

DEFAULT_PRESET = "default"
PRESETS: Mapping[str, Preset] = {**CRITIC_FREE, **WITH_CRITIC, **SELECTIVE}
_OFF = "none"
_RULES = ("material", "advantage", "loss", "kl", "critic")
"""Keys whose value is a table of one rule; the others are replaced as a whole."""


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an algorithm: those of its preset, with what `values` says on top.

    A table without a `name` changes parameters of the preset's rule; one with another name is
    another rule, and takes nothing from the preset's. `"none"` leaves a part out.

    Raises:
        ValueError: no such preset; the message names the nearest.
    """
    name = values.get("preset", DEFAULT_PRESET)
    if name not in PRESETS:
        close = difflib.get_close_matches(str(name), PRESETS, n=2)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"there are {', '.join(sorted(PRESETS))}"
        )
        raise ValueError(f'preset = "{name}": no such preset; {hint}')
    settings = dict(PRESETS[name].settings)
    if _replaces(settings.get("loss"), values.get("loss")):
        settings.pop("aggregation", None)  # it goes with the loss
    for key, value in values.items():
        if key in _RULES and value == _OFF:
            settings[key] = None
        elif key in _RULES and isinstance(value, Mapping) and key in settings:
            replaces = _replaces(settings[key], value)
            settings[key] = dict(value) if replaces else {**settings[key], **value}
        else:
            settings[key] = value
    return settings | {"preset": name}


def _replaces(preset_rule: Mapping[str, Any] | None, rule: object) -> bool:
    """Whether `rule` is another one than the preset's."""
    if not isinstance(rule, Mapping) or preset_rule is None:
        return False
    return "name" in rule and rule["name"] != preset_rule.get("name")
