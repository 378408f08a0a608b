"""The wording of a teacher's actions, in one place: what a policy is shown to write.

Everything here speaks the grammar of `espalier.environments.search_qa`.
"""

from __future__ import annotations

from collections.abc import Sequence

LABEL_SEPARATOR = " , "


def search_query(name: str, label: str) -> str:
    """What to type to find the line `label` of the document titled `name`."""
    return f"{name} {label}"


def search_action(thought: str, query: str) -> str:
    """One action that searches."""
    return f"<think> {thought} </think> <search> {query} </search>"


def answer_action(thought: str, answer: str) -> str:
    """One action that answers."""
    return f"<think> {thought} </think> <answer> {answer} </answer>"


def remaining_hops(labels: Sequence[str]) -> str:
    """Thought before a search: the lines still to be read, in order."""
    return LABEL_SEPARATOR.join(labels)


def ready_to_answer() -> str:
    """Thought before the answer."""
    return "answer"


def look_up() -> str:
    """Thought of a teacher that has nothing but the question's own words."""
    return "find"
