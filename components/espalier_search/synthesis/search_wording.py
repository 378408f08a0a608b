"""The thoughts and search calls of a teacher, and the parsing of its observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from espalier.records import FinalAnswer, ToolCall, ToolCalls
from espalier.records.folding import folded_name
from espalier.records.message import ToolSpec

WriteAction = Callable[[ToolCalls | FinalAnswer], str]
"""A function that writes an action in the policy's dialect."""

LABEL_SEPARATOR = " , "
READY_TO_ANSWER = "answer"
"""Thought before the answer."""
LOOK_UP = "find"
"""Thought of a teacher that searches for words of the question."""
SEARCH_TOOL = ToolSpec(
    name="search",
    description="Search the documents.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
    call_tag="search",
    result_tag="information",
)
"""The part of the tool's specification that writing and parsing calls needs; the whole is in
`environments.search_qa`."""


def search_query(name: str, label: str) -> str:
    """A query for the line `label` of the document titled `name`."""
    return f"{name} {label}"


def search_call(thought: str, query: str) -> ToolCalls:
    """An action with one search call."""
    return ToolCalls((ToolCall(name=SEARCH_TOOL.name, arguments={"query": query}),), thought)


def remaining_hops(labels: Sequence[str]) -> str:
    """Thought before a search: the labels of the lines that remain to be read, in order."""
    return LABEL_SEPARATOR.join(labels)


def joint_label(labels: Sequence[str]) -> str:
    """Label of one search for the value that the lines `labels` of several documents share."""
    return f"both {' '.join(dict.fromkeys(labels))}"


def joint_query(names: Sequence[str], labels: Sequence[str]) -> str:
    """A query for a document that mentions all of `names`."""
    return " ".join((*names, *dict.fromkeys(labels)))


def joint_title(observation: str, names: Sequence[str]) -> str | None:
    """Title of the first hit that lists all of `names` and is none of them; None if none does."""
    wanted = {folded_name(name) for name in names}
    for hit in shown_hits(observation):
        values = [
            folded_name(value)
            for line in hit.lines
            for value in line.partition(": ")[2].split(VALUE_SEPARATOR)
        ]
        if wanted.issubset(values) and folded_name(hit.title) not in wanted:
            return hit.title
    return None


HIT_SEPARATOR = " || "
LINE_SEPARATOR = " | "
VALUE_SEPARATOR = "; "


class ShownHit(NamedTuple):
    """One hit of an observation."""

    title: str
    lines: tuple[str, ...]


def shown_hits(observation: str) -> list[ShownHit]:
    """The hits of an observation, best first."""
    found = []
    for text in observation.split(HIT_SEPARATOR):
        title, *lines = text.split(LINE_SEPARATOR)
        found.append(ShownHit(title.strip(), tuple(line.strip() for line in lines)))
    return found


def listed_values(observation: str, title: str, label: str) -> tuple[str, ...] | None:
    """Values of the line `label` in the hit titled `title`; None if it is not shown."""
    wanted, prefix = folded_name(title), f"{label}: "
    for hit in shown_hits(observation):
        if folded_name(hit.title) != wanted:
            continue
        for line in hit.lines:
            if line.startswith(prefix):
                return tuple(line[len(prefix) :].split(VALUE_SEPARATOR))
    return None
