"""Filters over rows of text: secrets, contamination by benchmarks, quality, near-duplicates.

The first filter that refuses a row gives the reason.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from espalier.config import CurationConfig
from espalier.records import DataError
from espalier.records.folding import words
from espalier.records.task import read_json_values

RUN_WORDS = 3
"""Length, in words, of the runs that measure repetition and near-duplicates."""

_SHAPES = {
    "private_key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "api_key": re.compile(
        r"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}"
        r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[0-9A-Za-z_-]{35}|hf_[A-Za-z0-9]{30,})"
    ),
    "token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,2048}\.eyJ[A-Za-z0-9_-]{8,8192}\.[A-Za-z0-9_-]{8}"),
    "email": re.compile(r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"),
    "phone": re.compile(r"(?<![\w+])\+\d{1,3}[ .()-]*(?:\d[ .()-]*){8,12}\b"),
    "ip_address": re.compile(
        r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.])"
    ),
    "password": re.compile(r"(?i)\b(?:password|passwd|secret_key|api_key)\s*[=:]\s*\S{6,}"),
}
_CARD = re.compile(r"(?<![\d.,])(?:\d[ -]?){12,18}\d(?![\d.,])")


def secret_in(text: str) -> str:
    """Return the kind of the first match that looks like personal data or a secret, or ""."""
    for kind, shape in _SHAPES.items():
        if shape.search(text):
            return kind
    if any(_is_card(re.sub(r"\D", "", found[0])) for found in _CARD.finditer(text)):
        return "card_number"
    return ""


def _is_card(digits: str) -> bool:
    """Return Luhn's check: every second digit from the right doubled, the sum a multiple of ten."""
    doubled = [
        int(digit) if place % 2 == 0 else sum(divmod(2 * int(digit), 10))
        for place, digit in enumerate(reversed(digits))
    ]
    return len(set(digits)) > 1 and sum(doubled) % 10 == 0


_CONTAMINATION_WORDS = 13
"""Length of the run that marks a row as contaminated if a benchmark has it too: GPT-3's."""
_MIN_WORDS = 5
"""Shorter texts of a benchmark ("Paris", "yes or no") count only if they are the whole row."""


class Contamination:
    """Texts of benchmarks, looked up by runs of words."""

    def __init__(
        self, benchmarks: Mapping[str, Iterable[str]], run_words: int = _CONTAMINATION_WORDS
    ) -> None:
        self._run_words = run_words
        self._whole: dict[str, str] = {}
        self._runs: dict[tuple[str, ...], str] = {}
        self._lengths = {run_words}
        for name, texts in benchmarks.items():
            for text in texts:
                self._add(name, words(text))

    def found_in(self, text: str) -> str:
        """Return `NAME: exact` or `NAME: 13 words in a row`; "" if nothing is shared."""
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
        self._lengths.add(length)  # a text shorter than a run counts only as a whole
        for start in range(len(found) - length + 1):
            self._runs.setdefault(tuple(found[start : start + length]), name)


def benchmark_texts(path: Path) -> Iterator[str]:
    """Yield the texts of a benchmark's file: lines of a .txt, every string of a .jsonl.

    Raises:
        DataError: the file is missing or of another kind, or a line is no JSON.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise DataError(f"{path}: a benchmark is a .txt (a text a line) or a .jsonl file")
    if path.suffix == ".jsonl":
        for _, row in read_json_values(path):
            yield from _strings_in(row)
        return
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _strings_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)


_MIN_RUNS, _MAX_REPEATED_SHARE = 20, 0.5
"""A text of so many runs is repetitive if more than that share of them is one run."""
_MIN_LETTER_SHARE = 0.4


def quality_fault(text: str, config: CurationConfig) -> str:
    """`too_short`, `too_long`, `repetitive`, `no_language`, `damaged`; "" for a fit text."""
    found = words(text)
    if len(found) < config.min_words:
        return "too_short"
    if len(found) > config.max_words:
        return "too_long"
    if "\ufffd" in text or any(not c.isprintable() and c not in "\n\t" for c in text):
        return "damaged"
    visible = [char for char in text if not char.isspace()]
    if sum(char.isalnum() for char in visible) < _MIN_LETTER_SHARE * len(visible):
        return "no_language"
    runs = Counter(tuple(found[i : i + RUN_WORDS]) for i in range(len(found) - RUN_WORDS + 1))
    if runs.total() >= _MIN_RUNS:
        most = runs.most_common(1)[0][1]
        if most > _MAX_REPEATED_SHARE * runs.total():
            return "repetitive"
    return ""


_BANDS, _ROWS = 32, 4
"""A pair of overlap s becomes a candidate with 1 - (1 - s^4)^32: 0.99999994 at 0.8, 0.87 at 0.5."""
_SEED = 20260101


def near_duplicates(texts: Sequence[str], threshold: float) -> dict[int, int]:
    """Return, for each row that repeats an earlier, kept row, the index of that row.

    Args:
        texts: texts in the order in which they are kept.
        threshold: least Jaccard overlap of 3-word runs that makes a repetition.
    """
    # multiply-shift functions: odd multipliers and offsets of 64 bits
    rng = np.random.default_rng(_SEED)
    drawn = rng.integers(0, 2**64, size=(2, _BANDS * _ROWS), dtype=np.uint64)
    multipliers, offsets = drawn[0] | np.uint64(1), drawn[1]

    kept: dict[int, frozenset[int]] = {}
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    found: dict[int, int] = {}
    for row, text in enumerate(texts):
        runs = word_runs(text)
        hashes = np.fromiter(runs, dtype=np.uint64, count=len(runs))
        # the overflow is intended
        signature = (hashes[:, None] * multipliers + offsets).min(axis=0)
        bands = signature.reshape(_BANDS, _ROWS)
        keys = [(number, band.tobytes()) for number, band in enumerate(bands)]

        candidates = sorted({other for key in keys for other in buckets[key]})
        original = next((c for c in candidates if overlap(runs, kept[c]) >= threshold), None)
        if original is not None:
            found[row] = original
            continue
        kept[row] = runs
        for key in keys:
            buckets[key].append(row)
    return found


def word_runs(text: str) -> frozenset[int]:
    """Return hashes of all runs of three folded words, or of the whole text if it is shorter."""
    found = words(text)
    count = max(1, len(found) - RUN_WORDS + 1)
    hashes: set[int] = set()
    for start in range(count):
        run = " ".join(found[start : start + RUN_WORDS])
        digest = hashlib.blake2b(run.encode(), digest_size=8).digest()
        hashes.add(int.from_bytes(digest, "little"))
    return frozenset(hashes)


def overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard overlap of two sets, 0-1."""
    return len(one & other) / len(one | other)


class TextRow(NamedTuple):
    """A text and the id of its record."""

    row_id: str
    text: str


class Dropped(NamedTuple):
    """A row that is left out, and the reason."""

    row_id: str
    reason: str
    detail: str


def screened(
    rows: Sequence[TextRow], config: CurationConfig, contamination: Contamination
) -> list[Dropped]:
    """Return the rows to leave out, in order; only repeats of kept rows are duplicates."""
    dropped: dict[int, Dropped] = {}
    for place, row in enumerate(rows):
        if fault := _fault(row, config, contamination):
            dropped[place] = fault
    left = [place for place in range(len(rows)) if place not in dropped]
    repeated = near_duplicates([rows[place].text for place in left], config.near_duplicate)
    for later, earlier in repeated.items():
        row, original = rows[left[later]], rows[left[earlier]]
        dropped[left[later]] = Dropped(row.row_id, "near_duplicate", original.row_id)
    return [dropped[place] for place in sorted(dropped)]


def _fault(row: TextRow, config: CurationConfig, contamination: Contamination) -> Dropped | None:
    if found := secret_in(row.text):
        return Dropped(
            row.row_id, "secret", found
        )  # only the kind: a report must not repeat the secret
    if found := contamination.found_in(row.text):
        return Dropped(row.row_id, "contaminated", found)
    if found := quality_fault(row.text, config):
        return Dropped(row.row_id, "quality", found)
    return None
