"""Advantages: how a reward becomes credit, one rule per module."""

from espalier.training.advantages.grpo import grpo_advantages, is_zero_variance

__all__ = ["grpo_advantages", "is_zero_variance"]
