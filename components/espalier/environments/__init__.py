"""Environments: where a policy's actions are played and scored, one module per task family."""

from espalier.environments.actions import Answer, Malformed, ParsesActions, call_of
from espalier.environments.environment import (
    Environment,
    EnvironmentLostError,
    Environments,
    Step,
)
from espalier.environments.opening import (
    EnvironmentsOver,
    grammar_of,
    opened_environments,
    parser_of,
    search_environments,
)
from espalier.environments.search_qa import (
    SEARCH_GRAMMAR,
    Search,
    Searcher,
    SearchQA,
    SearchQAs,
    parse_action,
)

__all__ = [
    "SEARCH_GRAMMAR",
    "Answer",
    "Environment",
    "EnvironmentLostError",
    "Environments",
    "EnvironmentsOver",
    "Malformed",
    "ParsesActions",
    "Search",
    "SearchQA",
    "SearchQAs",
    "Searcher",
    "Step",
    "call_of",
    "grammar_of",
    "opened_environments",
    "parse_action",
    "parser_of",
    "search_environments",
]
