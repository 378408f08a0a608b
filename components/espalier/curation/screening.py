"""Every filter over the same rows, in order: the first that refuses a row says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from espalier.config import CurationConfig
from espalier.curation.contamination import Contamination
from espalier.curation.minhash import near_duplicates
from espalier.curation.quality import quality_fault
from espalier.curation.secrets import secret_in


class Row(NamedTuple):
    """A text with an id that leads back to where it came from."""

    row_id: str
    text: str


class Dropped(NamedTuple):
    """A row that is left out."""

    row_id: str
    reason: str
    detail: str


def screened(
    rows: Sequence[Row], config: CurationConfig, contamination: Contamination
) -> list[Dropped]:
    """The rows to leave out, in their order; a repetition counts only against a row that stays."""
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


def _fault(row: Row, config: CurationConfig, contamination: Contamination) -> Dropped | None:
    if found := secret_in(row.text):
        return Dropped(row.row_id, "secret", found)  # the kind alone: a report must not repeat it
    if found := contamination.found_in(row.text):
        return Dropped(row.row_id, "contaminated", found)
    if found := quality_fault(row.text, config):
        return Dropped(row.row_id, "quality", found)
    return None
