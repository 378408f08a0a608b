"""Curation: which rows of text may be trained on, and the reason for each refusal.

Near-duplicates, contamination by benchmarks, quality, personal data and secrets, the mix of kinds,
and the card that describes a dataset. Rows are texts with an id; nothing here depends on tasks or
trajectories.
"""

from espalier.curation.dataset import dataset_card, diversity, mixed
from espalier.curation.screening import (
    Contamination,
    Dropped,
    TextRow,
    benchmark_texts,
    near_duplicates,
    quality_fault,
    screened,
    secret_in,
)

__all__ = [
    "Contamination",
    "Dropped",
    "TextRow",
    "benchmark_texts",
    "dataset_card",
    "diversity",
    "mixed",
    "near_duplicates",
    "quality_fault",
    "screened",
    "secret_in",
]
