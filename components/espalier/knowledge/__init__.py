"""Triples and documents that the agent searches: sources, splits, views and the search tool."""

from espalier.knowledge.graph import Document, Entity, KnowledgeGraph, Relation, Triple
from espalier.knowledge.search import Hit, SearchTool

__all__ = ["Document", "Entity", "Hit", "KnowledgeGraph", "Relation", "SearchTool", "Triple"]
