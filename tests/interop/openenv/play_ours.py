"""Clients of the real openenv package on a server of ours, for a venv that has it alone.

    python play_ours.py URL

Prints one JSON object: what each client met.
"""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


def by_socket(url):
    """Reset, two calls, the answer."""
    with GenericEnvClient(base_url=url).sync() as env:
        begun = env.reset(seed=4)
        priced = env.step(_call("price", item="thing5"))
        refused = env.step(_call("price", item="moon"))
        ended = env.step(_call("answer", text="35"))
        return {
            "prompt": begun.observation["prompt"][0]["content"],
            "results": [one.observation["result"] for one in (priced, refused)],
            "reward": ended.reward,
            "done": [one.done for one in (begun, priced, ended)],
            "steps": env.state()["step_count"],
        }


async def by_mcp(url):
    """A session begun over HTTP, its tools listed and called."""
    async with MCPToolClient(base_url=url) as env:
        begun = await env.reset(seed=4)
        tools = [tool.name for tool in await env.list_tools()]
        priced = await env.call_tool("price", item="thing5")
        return {"tools": tools, "prompt": begun.observation.prompt[0]["content"], "price": priced}


def _call(name, **arguments):
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


if __name__ == "__main__":
    met = {"socket": by_socket(sys.argv[1]), "mcp": asyncio.run(by_mcp(sys.argv[1]))}
    print(json.dumps(met))
