"""Where knowledge comes from: GeoNames, or a folder of the user's own documents."""

from espalier.knowledge.sources.source import Question, Source, SourceDocument, SourceEntity

__all__ = ["Question", "Source", "SourceDocument", "SourceEntity"]
