"""Question answering over documents: one search tool, exact match."""

from espalier_search.search_qa.family import (
    SearchQA,
    SearchQAConfig,
    search_environments,
    search_tool,
)

__all__ = ["SearchQA", "SearchQAConfig", "search_environments", "search_tool"]
