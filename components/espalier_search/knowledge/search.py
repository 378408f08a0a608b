"""The search tool: which documents of a view a query finds, and what the agent reads of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from espalier.config import SearchConfig
from espalier.environments.contract import View
from espalier.environments.text_index import TextIndex
from espalier.records.folding import content_words, search_words
from espalier.records.knowledge import Document, load_documents

NO_RESULTS = "no results"
_CACHED_QUERIES = 65536


@dataclass(frozen=True, slots=True)
class Hit:
    """One document that a query found, and its best-matching lines."""

    document_id: str
    title: str
    snippet: str
    """Lines joined by " | "."""
    score: float


class SearchTool:
    """Searches one view of a knowledge artifact; equal queries give equal hits."""

    def __init__(
        self, documents: Sequence[Document], index: TextIndex, config: SearchConfig
    ) -> None:
        self._documents = documents
        self._by_id = {document.document_id: document for document in documents}
        self._index = index
        self._config = config
        self._cache: OrderedDict[str, tuple[Hit, ...]] = OrderedDict()

    @classmethod
    def open(cls, knowledge_dir: Path, view: View, config: SearchConfig) -> Self:
        """Open a view of the artifact in `knowledge_dir`.

        Raises:
            ArtifactError: a file of the view is missing or truncated.
        """
        documents = load_documents(documents_path(knowledge_dir, view))
        index = TextIndex.load(index_dir(knowledge_dir, view), documents)
        return cls(documents, index, config)

    def search(self, query: str) -> tuple[Hit, ...]:
        """Return the documents for `query`, best first; empty if no word is known."""
        if (cached := self._cache.get(query)) is not None:
            self._cache.move_to_end(query)
            return cached
        ranked = self._index.rank(query, self._config.top_k)
        hits = tuple(
            self._hit(self._documents[entry.place], query, entry.score) for entry in ranked
        )
        self._cache[query] = hits
        if len(self._cache) > _CACHED_QUERIES:
            self._cache.popitem(last=False)
        return hits

    def observation(self, query: str) -> str:
        """Return the text the agent reads: "title | line | line", hits joined by " || ", cut."""
        shown = " || ".join(f"{hit.title} | {hit.snippet}" for hit in self.search(query))
        kept = shown.split()[: self._config.max_observation_words]
        return " ".join(kept) or NO_RESULTS

    def show(self, document: Document, query: str) -> str:
        """Return the observation that shows `document` for `query`, even if the view hides it."""
        hit = self._hit(document, query, 0.0)
        return " ".join(
            f"{hit.title} | {hit.snippet}".split()[: self._config.max_observation_words]
        )

    def document(self, document_id: str) -> Document:
        """Return the document as the view shows it; KeyError if the view hides it."""
        return self._by_id[document_id]

    def _hit(self, document: Document, query: str, score: float) -> Hit:
        wanted = set(content_words(query, search_words)) - set(search_words(document.title))

        # lines that share the rarest words with the query; else the first lines
        lines = document.lines
        scores: list[float] = []
        for line in lines:
            shared = wanted & set(search_words(line))
            scores.append(sum(self._index.idf(word) for word in shared))
        order = sorted(range(len(lines)), key=lambda place: -scores[place])
        best = [lines[place] for place in order if scores[place] > 0]
        shown = (best or lines)[: self._config.snippet_lines]
        return Hit(document.document_id, document.title, " | ".join(shown), score)


def documents_path(knowledge_dir: Path, view: View) -> Path:
    """Return the path of a view's documents, stored in the order of the index."""
    if view == "full":
        return knowledge_dir / "documents.parquet"
    return index_dir(knowledge_dir, view) / "documents.parquet"


def index_dir(knowledge_dir: Path, view: View) -> Path:
    """Return the folder of a view's index."""
    return knowledge_dir / "index" / view
