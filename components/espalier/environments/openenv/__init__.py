"""Tasks that are played on an OpenEnv server, over its protocol alone."""

from espalier.environments.openenv.config import OpenEnvConfig
from espalier.environments.openenv.family import OpenEnv

__all__ = ["OpenEnv", "OpenEnvConfig"]
