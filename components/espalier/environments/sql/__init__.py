"""Questions about databases, answered by queries, as in InterCode."""

from espalier.environments.sql.config import SqlConfig
from espalier.environments.sql.family import Sql

__all__ = ["Sql", "SqlConfig"]
