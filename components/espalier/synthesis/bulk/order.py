"""What is drawn, and which part draws how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from espalier.config import SplitsConfig
from espalier.synthesis.quotas import apportion
from espalier.synthesis.task_making import Split


class Part(NamedTuple):
    """Questions of one split that no other part can draw."""

    split: Split
    number: int
    """Among the parts of its split."""

    @property
    def name(self) -> str:
        """Of its folder and file."""
        return f"{self.split}-{self.number:04d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is drawn; everything here is part of what the rows depend on."""

    knowledge: Path
    splits: tuple[Split, ...]
    count: int
    """Over all splits."""
    parts: int = 8
    """Of each split. The rows depend on it, and not on the number of processes."""


def first_quotas(asked: Asked, config: SplitsConfig) -> dict[Part, int]:
    """Rows of every part: splits by their share of the entities, parts of a split evenly."""
    held_back: Mapping[Split, float] = {"dev": config.dev_share, "heldout": config.heldout_share}
    shares = {"train": 1 - sum(held_back.values()), **held_back}
    of_split = apportion({split: shares[split] for split in asked.splits}, asked.count)
    return {
        Part(split, number): len(range(number, of_split[split], asked.parts))
        for split in asked.splits
        for number in range(asked.parts)
    }


def widened(quotas: Mapping[Part, int], rows: Mapping[Part, int], count: int) -> dict[Part, int]:
    """What parts that ran dry are short of, evenly on top of the quotas of the others.

    Args:
        quotas: of every part, so far.
        rows: that every part has drawn, its quota at most; one with less has run dry.
        count: rows of all parts together.

    Returns:
        The same quotas where nothing is missing, or every part has run dry.
    """
    going = [part for part in quotas if rows[part] == quotas[part]]
    missing = count - sum(rows.values())
    more = {part: len(range(place, missing, len(going))) for place, part in enumerate(going)}
    return {part: quota + more.get(part, 0) for part, quota in quotas.items()}
