"""The rules of reinforcement learning: advantages, losses, aggregation, corrections, filters.

They import nothing else of espalier: a profile is parsed into them, and `training` runs them.
"""

from espalier.algorithms.algorithm import Algorithm

__all__ = ["Algorithm"]
