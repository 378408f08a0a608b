"""A parcel desk as a server of the real mcp package, over HTTP, for a venv that has it alone.

python parcel_desk.py PORT
"""

import sys

from mcp.server import MCPServer
from parcels import PRICES, WEIGHTS

server = MCPServer("parcels", log_level="ERROR")


@server.tool()
def weigh(item: str, count: int) -> str:
    """Weigh an order."""
    return str(WEIGHTS[item] * count) if item in WEIGHTS else f"there is no {item} here"


@server.tool()
def fee(carrier: str, weight: int) -> str:
    """The fee of a carrier for a weight."""
    return str(PRICES[carrier] * weight) if carrier in PRICES else f"there is no {carrier} here"


if __name__ == "__main__":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
