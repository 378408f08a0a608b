"""Questions about databases, which queries answer, as InterCode has them."""

from espalier.environments.sql.config import SqlConfig
from espalier.environments.sql.family import Sql

__all__ = ["Sql", "SqlConfig"]
