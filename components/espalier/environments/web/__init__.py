"""The text web: pages and forms read as text, as in WebArena."""

from espalier.environments.web.config import WebConfig
from espalier.environments.web.family import Web

__all__ = ["Web", "WebConfig"]
