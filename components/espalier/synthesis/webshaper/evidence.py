"""What the documents say in full: where a name occurs, and what a line lists."""

from __future__ import annotations

from collections.abc import Iterable

from espalier.knowledge import Document
from espalier.knowledge.folding import words


class Evidence:
    """Documents by id, folded word by word on first use."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = {document.document_id: document for document in documents}
        self._folded: dict[str, str] = {}

    def occurrences(self, folded: str, document_id: str) -> int:
        """How often a folded name stands in the document, title included."""
        return self._text(document_id).count(_spaced(folded.split()))

    def line(self, document_id: str, label: str) -> str | None:
        """What follows "label: " in the document, or None where it has no such line."""
        document = self._documents.get(document_id)
        prefix = f"{label}: "
        for line in document.lines if document else ():
            if line.startswith(prefix):
                return line[len(prefix) :]
        return None

    def _text(self, document_id: str) -> str:
        text = self._folded.get(document_id)
        if text is None:
            document = self._documents.get(document_id)
            shown = " | ".join((document.title, *document.lines)) if document else ""
            text = _spaced(words(shown))
            self._folded[document_id] = text
        return text


def _spaced(folded_words: Iterable[str]) -> str:
    """Every word between spaces of its own, so that counting never skips a neighbour."""
    return "".join([f" {word} " for word in folded_words])
