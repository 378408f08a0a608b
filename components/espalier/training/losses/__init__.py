"""Losses and penalties of the policy update, one rule per module."""

from espalier.training.losses.asymmetric_clip import ClippedLoss, asymmetric_clip
from espalier.training.losses.kl import k3_kl

__all__ = ["ClippedLoss", "asymmetric_clip", "k3_kl"]
