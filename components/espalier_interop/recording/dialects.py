"""The dialect of a request: how the policy writes calls of the agent's tools."""

from __future__ import annotations

from collections.abc import Sequence

from espalier.dialects.dialect import Dialect
from espalier.dialects.tags import Tags
from espalier.records import PolicyError
from espalier.records.message import ToolSpec
from espalier.wire.requests import Refusal


class RequestDialects:
    """The dialects of one policy, by the tools of a request."""

    def __init__(self, dialect: Dialect) -> None:
        """Write in the syntax of `dialect`, an engine's stop rule.

        The tag dialect accepts only its own tools, as the policy was trained on their tags.
        """
        self._dialect = dialect
        self._is_bound = isinstance(dialect.syntax, Tags)

    def of(self, tools: Sequence[ToolSpec]) -> Dialect:
        """Return the dialect with these tools.

        Raises:
            Refusal: the policy has no way to write calls of one of them.
        """
        if self._is_bound:
            known = [tool.name for tool in self._dialect.tools]
            if unknown := [tool.name for tool in tools if tool.name not in known]:
                raise Refusal(
                    400,
                    f"tools: {', '.join(unknown)}: the policy's tag dialect has a tag for each of "
                    f"{', '.join(known) or 'no tool'}, and for no other",
                    param="tools",
                )
            return self._dialect
        try:
            return self._dialect.with_tools(tools)
        except PolicyError as error:
            raise Refusal(400, f"tools: {error}", param="tools") from error
