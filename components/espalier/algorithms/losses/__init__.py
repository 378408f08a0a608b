"""Policy losses, one rule a module; this union is the only list."""

from espalier.algorithms.losses.ppo_clip import PpoClip

LossRule = PpoClip

__all__ = ["LossRule", "PpoClip"]
