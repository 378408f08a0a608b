"""The tools that both of tau-bench's domains have, and the look-up of records."""

from __future__ import annotations

from espalier.environments.tools import ToolError
from espalier_environments.customer_service.arguments import StoredText, Text
from espalier_environments.customer_service.calculator import calculated
from espalier_environments.customer_service.database import DatabaseCopy, Record


class ServiceTools:
    """Tools over one episode's copy of the database; every public method is a tool."""

    def __init__(self, state: DatabaseCopy) -> None:
        self._state = state

    def calculate(self, expression: Text) -> str:
        """Calculate an expression of numbers, + - * /, parentheses and spaces."""
        return calculated(expression)

    def think(self, thought: StoredText) -> str:
        """Write down a thought; nothing else happens."""
        del thought
        return ""

    def transfer_to_human_agents(self, summary: StoredText) -> str:
        """Hand the user over to a human, with a summary of what they want.

        Where the user asks for one, or the tools cannot do what they want.
        """
        del summary
        return "Transfer successful"

    def _found(self, table: str, key: str, kind: str) -> Record:
        record = self._state.find(table, key)
        if record is None:
            raise ToolError(f"there is no {kind} {key}")
        return record
