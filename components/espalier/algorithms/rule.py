"""What every rule of reinforcement learning here is: a parsed piece of the profile that computes.

A rule is a frozen pydantic model whose fields are its parameters and whose one method is its
formula. Parsing the profile yields the object that runs, so nothing is declared twice; rules import
nothing else of espalier, so the profile can hold them, and no torch: they compute with the methods
of the tensors that they are given, so that a profile loads without it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Rule(BaseModel):
    """Parameters and formula of one rule; `name` selects it in the profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")
