"""The text web: pages and forms read as text, as in WebArena."""

from espalier_environments.web.config import WebConfig
from espalier_environments.web.family import Web

__all__ = ["Web", "WebConfig"]
