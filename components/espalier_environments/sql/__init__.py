"""Questions about databases, answered by queries, as in InterCode."""

from espalier_environments.sql.config import SqlConfig
from espalier_environments.sql.family import Sql

__all__ = ["Sql", "SqlConfig"]
