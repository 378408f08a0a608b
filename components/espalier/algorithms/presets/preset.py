"""What a preset is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A combination of rules, and the paper (or the code) that it comes from."""

    source: str
    settings: Mapping[str, Any]
