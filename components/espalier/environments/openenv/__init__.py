"""Tasks that are played on an OpenEnv server, through its protocol only."""

from espalier.environments.openenv.config import OpenEnvConfig
from espalier.environments.openenv.family import OpenEnv

__all__ = ["OpenEnv", "OpenEnvConfig"]
