"""Agents of others: programs that play the tasks through the endpoint, which records them."""

from espalier_interop.agents.player import agent_player

__all__ = ["agent_player"]
