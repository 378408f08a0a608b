"""Triples that a model states about a user's documents; what it cannot prove is not believed.

A statement is kept when its quotation stands in the document, its subject and object stand in the
quotation, and its relation is one that may be stated. Names are taken from the document, so that
nothing of the model's own wording is kept but the name of a relation of an open set.
"""

from espalier.knowledge.extraction.extracted import Extracted, save_extracted
from espalier.knowledge.extraction.reading import extract

__all__ = ["Extracted", "extract", "save_extracted"]
