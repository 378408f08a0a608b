"""Contamination: rows that repeat a benchmark, whole or in a long run of words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from espalier.knowledge.folding import words
from espalier.records import DataError

_MIN_WORDS = 5
"""Shorter texts of a benchmark ("Paris", "yes or no") count only where a row is nothing else."""


class Contamination:
    """Texts of benchmarks, looked up by runs of words."""

    def __init__(self, benchmarks: Mapping[str, Iterable[str]], run_words: int) -> None:
        self._run_words = run_words
        self._whole: dict[str, str] = {}
        self._runs: dict[tuple[str, ...], str] = {}
        self._lengths = {run_words}
        for name, texts in benchmarks.items():
            for text in texts:
                self._add(name, words(text))

    def found_in(self, text: str) -> str:
        """`NAME: exact` or `NAME: 13 words in a row`; empty where nothing is shared."""
        found = words(text)
        if name := self._whole.get(" ".join(found), ""):
            return f"{name}: exact"
        for length in sorted(self._lengths):
            for start in range(len(found) - length + 1):
                if name := self._runs.get(tuple(found[start : start + length]), ""):
                    return f"{name}: {length} words in a row"
        return ""

    def _add(self, name: str, found: list[str]) -> None:
        if not found:
            return
        self._whole.setdefault(" ".join(found), name)
        length = min(len(found), self._run_words)
        if length < _MIN_WORDS:
            return
        self._lengths.add(length)  # a benchmark's short question is contained whole or not at all
        for start in range(len(found) - length + 1):
            self._runs.setdefault(tuple(found[start : start + length]), name)


def benchmark_texts(path: Path) -> Iterator[str]:
    """The texts of a benchmark's file: lines of a .txt, every string of a .jsonl.

    Raises:
        DataError: the file is missing, of another kind, or a line is no JSON.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise DataError(f"{path}: a benchmark is a .txt (a text a line) or a .jsonl file")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a benchmark ({error})") from error
    for number, line in enumerate(lines, start=1):
        if path.suffix == ".txt":
            yield line
            continue
        try:
            yield from _strings_in(json.loads(line) if line.strip() else None)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error


def _strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)
