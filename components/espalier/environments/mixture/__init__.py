"""Several families in one run, described in README.md."""

from espalier.environments.mixture.config import MixtureConfig
from espalier.environments.mixture.family import Mixture

__all__ = ["Mixture", "MixtureConfig"]
