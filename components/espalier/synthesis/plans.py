"""What a teacher that searches thinks and does: the wording that a policy is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.records.message import ToolSpec

Write = Callable[[ToolCalls | FinalAnswer], str]
"""Spells an action in the policy's dialect."""

LABEL_SEPARATOR = " , "
SEARCH = ToolSpec(
    name="search",
    description="Search the documents.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
    call_tag="search",
    result_tag="information",
)
"""The tool, as far as its calls are written and read; `environments.search_qa` has it whole."""


def search_query(name: str, label: str) -> str:
    """What to type to find the line `label` of the document titled `name`."""
    return f"{name} {label}"


def search(thought: str, query: str) -> ToolCalls:
    """One action that searches."""
    return ToolCalls((ToolCall(name=SEARCH.name, arguments={"query": query}),), thought)


def remaining_hops(labels: Sequence[str]) -> str:
    """Thought before a search: the lines still to be read, in order."""
    return LABEL_SEPARATOR.join(labels)


def ready_to_answer() -> str:
    """Thought before the answer."""
    return "answer"


def look_up() -> str:
    """Thought of a teacher that has nothing but the question's own words."""
    return "find"
