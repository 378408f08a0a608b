"""Profile section `curation`: which accepted training rows are fit to be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from espalier.config.data import Section


class CurationConfig(Section):
    """Filters over training questions and agent texts; dev and held-out tasks stay as they are."""

    enabled: bool = False
    """Whether training rows are curated at all."""
    near_duplicate: float = Field(default=0.8, gt=0, le=1)
    """A row whose words overlap an earlier one's by so much (Jaccard of 3-word runs) is dropped."""
    benchmarks: dict[str, Path] = Field(default_factory=dict[str, Path])
    """Name -> .txt (a text a line) or .jsonl (every string of a row is a text) that must not be
    trained on."""
    contamination_words: int = Field(default=13, ge=4)
    """So many words in a row that a benchmark has too are contamination (GPT-3 used 13)."""
    min_words: int = Field(default=3, ge=1)
    """Shorter rows are dropped."""
    max_words: int = Field(default=2000, ge=1)
    """Longer rows are dropped."""
    max_repeated_share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of a row's 3-word runs that one run may make up, in rows of 20 runs or more."""
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Kind of agent text -> its weight in the mix; kinds that are not named are all kept."""

    @model_validator(mode="after")
    def _bounds_leave_something(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"curation.min_words={self.min_words} exceeds max_words={self.max_words}"
            )
        known = {"planning", "reasoning", "decision"}
        if unknown := sorted(self.weights.keys() - known):
            raise ValueError(f"curation.weights: no kind {unknown[0]!r}; there are {sorted(known)}")
        if any(not 0 < weight < float("inf") for weight in self.weights.values()):
            raise ValueError("curation.weights must be positive; leave a kind out by asking for 0")
        return self
