"""Triples and documents that the agent searches: sources, splits, views and the search tool."""

from espalier_search.knowledge.search import Hit, SearchTool

__all__ = ["Hit", "SearchTool"]
