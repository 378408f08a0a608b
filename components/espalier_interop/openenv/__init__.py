"""Tasks that are played on an OpenEnv server, through its protocol only."""

from espalier_interop.openenv.config import OpenEnvConfig
from espalier_interop.openenv.family import OpenEnv

__all__ = ["OpenEnv", "OpenEnvConfig"]
