"""Triples and documents that the agent searches: sources, splits, views and the search tool."""

from espalier.records.knowledge import Document, Entity, KnowledgeGraph, Relation, Triple
from espalier_search.knowledge.search import Hit, SearchTool

__all__ = ["Document", "Entity", "Hit", "KnowledgeGraph", "Relation", "SearchTool", "Triple"]
