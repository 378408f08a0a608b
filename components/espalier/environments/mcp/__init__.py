"""Tasks that are solved with the tools of MCP servers."""

from espalier.environments.mcp.config import McpConfig
from espalier.environments.mcp.family import Mcp

__all__ = ["Mcp", "McpConfig"]
