"""The BM25 index of a view: built, saved and loaded with bm25s, on numpy alone."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from espalier.knowledge.documents import Document
from espalier.knowledge.folding import EMPTY_WORDS, words
from espalier.records import ArtifactError

if TYPE_CHECKING:
    import bm25s

_TITLE_REPEATS = 3
"""Makes an entity's own document outrank those that mention it."""

_TITLE_BONUS = 2.0
"""Per idf of the title's words: "Lyon time zone" means Lyon before the shorter "Lyon County"."""

_ARRAY_FILES = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy")
_JSON_FILES = ("vocab.index.json", "params.index.json")


def _bm25s() -> ModuleType:
    """The library, imported where an index is used: a profile is read without it."""
    import bm25s

    # it sets its own logger to DEBUG on import, and the messages pass every handler above
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's place in the list that was indexed, and its score."""

    place: int
    score: float


class TextIndex:
    """Ranks documents against a query: BM25, and a bonus for a title that the query spells out."""

    def __init__(self, bm25: bm25s.BM25, documents: Sequence[Document]) -> None:
        self._bm25 = bm25
        frequencies = np.diff(np.asarray(bm25.scores["indptr"])).astype(np.float64)
        self._idf = np.log1p((len(documents) - frequencies + 0.5) / (frequencies + 0.5))
        self._titles: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, document in enumerate(documents):
            self._titles[tuple(words(document.title))].append(place)
        self._max_title_words = max((len(title) for title in self._titles), default=0)

    @classmethod
    def build(cls, documents: Sequence[Document]) -> Self:
        """Index titles and lines."""
        vocabulary: dict[str, int] = {}
        texts = (
            " ".join((*(document.title,) * _TITLE_REPEATS, *document.lines))
            for document in documents
        )
        token_ids = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts
        ]
        bm25 = _bm25s().BM25(backend="numpy", csc_backend="numpy")
        bm25.index((token_ids, vocabulary), create_empty_token=False, show_progress=False)
        return cls(bm25, documents)

    def save(self, directory: Path) -> None:
        """Write the index's files into `directory`."""
        self._bm25.save(directory, show_progress=False)

    @classmethod
    def load(cls, directory: Path, documents: Sequence[Document]) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: a file is missing, truncated, or of another set of documents.
        """
        for name in (*_ARRAY_FILES, *_JSON_FILES):
            _check_readable(directory / name)
        bm25 = _bm25s().BM25.load(directory, show_progress=False, backend="numpy")
        if bm25.scores["num_docs"] != len(documents):
            raise ArtifactError(
                f"{directory / 'params.index.json'}: the index is of {bm25.scores['num_docs']} "
                f"documents, but the view holds {len(documents)}. Run ingest again."
            )
        return cls(bm25, documents)

    def rank(self, query_words: Sequence[str], limit: int) -> list[Ranked]:
        """The best documents of positive score; equal scores in the documents' order."""
        known = self._bm25.get_tokens_ids(list(dict.fromkeys(query_words)))
        if not known:
            return []
        scores: NDArray[np.float32] = self._bm25.get_scores_from_ids(known)
        for title in self._spelled_titles(query_words):
            bonus = _TITLE_BONUS * sum(self.idf(word) for word in set(title))
            scores[self._titles[title]] += bonus
        floor = 0.0
        if limit < len(scores):
            floor = float(np.partition(scores, len(scores) - limit)[len(scores) - limit])
        places = np.flatnonzero((scores >= floor) & (scores > 0))
        best = places[np.argsort(-scores[places], kind="stable")][:limit]
        return [Ranked(int(place), float(scores[place])) for place in best]

    def _spelled_titles(self, query_words: Sequence[str]) -> set[tuple[str, ...]]:
        """Titles that stand in the query word after word, longest first, without overlap."""
        spelled: set[tuple[str, ...]] = set()
        start = 0
        while start < len(query_words):
            longest = min(self._max_title_words, len(query_words) - start)
            spans = (tuple(query_words[start : start + n]) for n in range(longest, 0, -1))
            title = next(
                (s for s in spans if s in self._titles and not EMPTY_WORDS.issuperset(s)), ()
            )
            if title:
                spelled.add(title)
            start += len(title) or 1
        return spelled

    def idf(self, word: str) -> float:
        """How rare `word` is among the documents; 0 where none has it."""
        token = self._bm25.vocab_dict.get(word)
        return 0.0 if token is None else float(self._idf[token])


def _check_readable(path: Path) -> None:
    try:
        if path.suffix == ".npy":
            np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path}: cannot be read ({error}). Run ingest again.") from error
