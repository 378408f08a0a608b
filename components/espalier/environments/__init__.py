"""Environments: where a policy's actions are played and scored, one module per task family."""

from espalier.environments.environment import (
    Environment,
    EnvironmentLostError,
    Environments,
    Step,
)
from espalier.environments.search_qa import (
    KIND_TAGS,
    STOP_TAGS,
    THOUGHT_END,
    Answer,
    Malformed,
    Search,
    Searcher,
    SearchQA,
    SearchQAs,
    parse_action,
)

__all__ = [
    "KIND_TAGS",
    "STOP_TAGS",
    "THOUGHT_END",
    "Answer",
    "Environment",
    "EnvironmentLostError",
    "Environments",
    "Malformed",
    "Search",
    "SearchQA",
    "SearchQAs",
    "Searcher",
    "Step",
    "parse_action",
]
