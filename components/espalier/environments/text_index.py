"""Ranks documents by BM25, with a bonus for titles that occur in the query."""

# bm25s has no types of its own:
# pyright: standard

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from espalier.records import ArtifactError
from espalier.records.folding import EMPTY_WORDS, folded_name, search_words
from espalier.records.knowledge import Document

if TYPE_CHECKING:
    import bm25s

_TITLE_REPEATS = 3
"""How often titles are indexed, so that an entity's own document outranks those that mention it."""

_TITLE_BONUS = 2.0
"""Bonus per idf of the title's words: "Lyon time zone" means Lyon rather than the shorter title
"Lyon County"."""

_MAX_MENTIONING = 256
"""Most documents that are read for the titles in a query, best-ranked first."""

_MAX_JOINT_TITLES = 32
"""Most titles of a query for which documents are sought that mention all of them: a question has
few, and a query of thousands would take longer than a call may."""

_ARRAY_FILES = ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy")
_JSON_FILES = ("vocab.index.json", "params.index.json")


def _imported_bm25s() -> ModuleType:
    """Import bm25s late: it comes with the extra `train`, and reading a profile needs no index."""
    import bm25s

    # importing bm25s sets its logger to DEBUG, which would reach every handler of an application
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's position in the indexed list, and its score."""

    place: int
    score: float


class TextIndex:
    """Ranks documents by BM25, with a bonus for titles that occur in the query.

    A query with several titles also asks for what they have in common: a document whose lines
    mention all of them gets the bonus of all.
    """

    def __init__(self, bm25: bm25s.BM25, documents: Sequence[Document]) -> None:
        self._bm25 = bm25
        frequencies = np.diff(np.asarray(bm25.scores["indptr"])).astype(np.float64)
        self._idf = np.log1p((len(documents) - frequencies + 0.5) / (frequencies + 0.5))
        self._documents = documents
        self._titles: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, document in enumerate(documents):
            self._titles[tuple(search_words(document.title))].append(place)
        self._max_title_words = max((len(title) for title in self._titles), default=0)

    @classmethod
    def build(cls, documents: Sequence[Document]) -> Self:
        """Build an index of titles and lines."""
        vocabulary: dict[str, int] = {}
        texts = (
            " ".join((*(document.title,) * _TITLE_REPEATS, *document.lines))
            for document in documents
        )
        token_ids = [
            [vocabulary.setdefault(word, len(vocabulary)) for word in search_words(text)]
            for text in texts
        ]
        bm25 = _imported_bm25s().BM25(backend="numpy", csc_backend="numpy")
        bm25.index((token_ids, vocabulary), create_empty_token=False, show_progress=False)
        return cls(bm25, documents)

    def save(self, directory: Path) -> None:
        """Write the index's files into `directory`."""
        self._bm25.save(directory, show_progress=False)

    @classmethod
    def load(cls, directory: Path, documents: Sequence[Document]) -> Self:
        """Read what `save` wrote.

        Raises:
            ArtifactError: a file is missing, truncated, or belongs to other documents.
        """
        for name in (*_ARRAY_FILES, *_JSON_FILES):
            _check_readable(directory / name)
        bm25 = _imported_bm25s().BM25.load(directory, show_progress=False, backend="numpy")
        if bm25.scores["num_docs"] != len(documents):
            raise ArtifactError(
                f"{directory / 'params.index.json'}: the index is of {bm25.scores['num_docs']} "
                f"documents, but the view holds {len(documents)}. Run ingest again."
            )
        return cls(bm25, documents)

    def rank(self, query: str, limit: int) -> list[Ranked]:
        """Return the best documents with positive score; ties keep the documents' order."""
        query_words = search_words(query)
        known = self._bm25.get_tokens_ids(list(dict.fromkeys(query_words)))
        if not known:
            return []
        scores: NDArray[np.float32] = self._bm25.get_scores_from_ids(known)
        spelled = f" {folded_name(query)} "
        meant = {title: self._meant(title, spelled) for title in self._spelled_titles(query_words)}
        titles = sorted(title for title, places in meant.items() if places)
        bonuses = [_TITLE_BONUS * sum(self.idf(word) for word in set(title)) for title in titles]
        is_joint = 1 < len(titles) <= _MAX_JOINT_TITLES
        mentioning = self._mentioning(titles, scores) if is_joint else []
        for title, bonus in zip(titles, bonuses, strict=True):
            scores[meant[title]] += bonus
        scores[mentioning] += sum(bonuses)
        floor = 0.0
        if limit < len(scores):
            floor = float(np.partition(scores, len(scores) - limit)[len(scores) - limit])
        places = np.flatnonzero((scores >= floor) & (scores > 0))
        best = places[np.argsort(-scores[places], kind="stable")][:limit]
        return [Ranked(int(place), float(scores[place])) for place in best]

    def _meant(self, title: tuple[str, ...], spelled: str) -> list[int]:
        """Return positions of the documents with these words as title, as the query signs them.

        C, C++ and C# have the same words: the query "C++ designer" means the second.

        Args:
            title: the words.
            spelled: the folded query between blanks.
        """
        places = self._titles[title]
        is_empty = EMPTY_WORDS.issuperset(title)
        if len(places) == 1 and not is_empty:
            return places
        names = ((place, folded_name(self._documents[place].title)) for place in places)
        named = [(place, name) for place, name in names if f" {name} " in spelled]
        if is_empty:  # "a" means nothing, and A+ does
            return [place for place, name in named if not EMPTY_WORDS.issuperset(name.split())]
        return [place for place, _ in named] or places

    def _spelled_titles(self, query_words: Sequence[str]) -> set[tuple[str, ...]]:
        """Return titles that occur in the query as consecutive words; longest match, no overlap."""
        spelled: set[tuple[str, ...]] = set()
        start = 0
        while start < len(query_words):
            longest = min(self._max_title_words, len(query_words) - start)
            spans = (tuple(query_words[start : start + n]) for n in range(longest, 0, -1))
            title = next((span for span in spans if span in self._titles), ())
            if title:
                spelled.add(title)
            start += len(title) or 1
        return spelled

    def _mentioning(
        self, titles: Sequence[tuple[str, ...]], scores: NDArray[np.float32]
    ) -> list[int]:
        """Return positions of documents whose lines mention all of `titles`, except their own."""
        places = self._holding({word for title in titles for word in title})
        best = places[np.argsort(-scores[places], kind="stable")][:_MAX_MENTIONING]
        own = {place for title in titles for place in self._titles[title]}
        return [
            place
            for place in best.tolist()
            if place not in own and self._mentions(self._documents[place], titles)
        ]

    def _mentions(self, document: Document, titles: Iterable[tuple[str, ...]]) -> bool:
        """Return whether the lines mention each title, not only as part of a longer one."""
        lines = [tuple(search_words(line)) for line in document.lines]
        return all(any(self._mentioned(title, line) for line in lines) for title in titles)

    def _mentioned(self, title: tuple[str, ...], line: tuple[str, ...]) -> bool:
        size = len(title)
        return any(
            line[start : start + size] == title and not self._lies_in_longer(line, start, size)
            for start in range(len(line) - size + 1)
        )

    def _lies_in_longer(self, line: tuple[str, ...], start: int, size: int) -> bool:
        """Return whether a title longer than `size` covers `line[start : start + size]`."""
        longest = self._max_title_words
        return any(
            line[first:end] in self._titles
            for first in range(max(0, start + size - longest), start + 1)
            for end in range(start + size, min(len(line), first + longest) + 1)
            if end - first > size
        )

    def _holding(self, held: Iterable[str]) -> NDArray[np.int64]:
        """Return the positions of documents that contain all of these words."""
        starts, indices = (np.asarray(self._bm25.scores[name]) for name in ("indptr", "indices"))
        tokens = [self._bm25.vocab_dict[word] for word in sorted(held)]
        # counting beats intersecting, which sorts: a word like "of" is in most documents
        held_words = np.zeros(len(self._documents), dtype=np.int32)
        for token in tokens:
            held_words[indices[starts[token] : starts[token + 1]]] += 1
        return np.flatnonzero(held_words == len(tokens))

    def idf(self, word: str) -> float:
        """Return the inverse document frequency of `word`; 0 if no document has it."""
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
