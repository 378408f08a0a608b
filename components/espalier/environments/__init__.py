"""Environments: where a policy's actions are played and scored, one module per task family."""

from espalier.environments.search_qa import (
    STOP_TAGS,
    Answer,
    Malformed,
    Search,
    SearchQA,
    parse_action,
)

__all__ = [
    "STOP_TAGS",
    "Answer",
    "Malformed",
    "Search",
    "SearchQA",
    "parse_action",
]
