"""Policy gradients learn from all that was admitted."""

from __future__ import annotations

from typing import Literal

from espalier.algorithms.rule import Rule


class Everything(Rule):
    """Every trajectory, weighed by its advantage."""

    name: Literal["everything"] = "everything"
