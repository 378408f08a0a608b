"""A stock of goods behind the real mcp package, for a venv or a sandbox that has it alone.

python stock_server.py                          over standard input and output
python stock_server.py streamable-http PORT     over HTTP
"""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("stock")
STOCK = {"lamp": 7, "chair": 12, "rope": 40}
taken: dict[str, int] = {}
"""Of this process: a server over standard input and output has one client."""


@server.tool()
def count(item: str) -> int:
    """How many of an item are there."""
    if item not in STOCK:
        raise ValueError(f"no {item} here")
    return STOCK[item] - taken.get(item, 0)


@server.tool()
def take(item: str, number: int = 1) -> str:
    """Take some of an item."""
    taken[item] = taken.get(item, 0) + number
    return f"took {number} {item}"


@server.tool()
def add_up(numbers: list[int]) -> int:
    """Add up numbers."""
    return sum(numbers)


@server.tool()
async def report(ctx: Context) -> str:
    """Say how far it is, and then that it is done."""
    await ctx.report_progress(1, 2)
    return "done"


if __name__ == "__main__":
    if sys.argv[1:2] == ["streamable-http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
