"""Tasks that are solved with the tools of MCP servers."""

from espalier_interop.mcp.config import McpConfig
from espalier_interop.mcp.family import Mcp

__all__ = ["Mcp", "McpConfig"]
