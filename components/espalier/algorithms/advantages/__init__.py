"""Advantages: how reward becomes credit, one rule a module; this union is the only list."""

from espalier.algorithms.advantages.grpo import Grpo

AdvantageRule = Grpo

__all__ = ["AdvantageRule", "Grpo"]
