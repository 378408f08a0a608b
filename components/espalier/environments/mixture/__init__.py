"""Several families in one run: see README.md."""

from espalier.environments.mixture.config import MixtureConfig
from espalier.environments.mixture.family import Mixture

__all__ = ["Mixture", "MixtureConfig"]
