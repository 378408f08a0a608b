"""Curation: which rows of text are fit to be trained on, each refusal with its reason.

Near-duplicates, contamination by benchmarks, quality, personal data and secrets, the mix of kinds,
and the card that says what a dataset is made of. Rows are texts with an id; nothing here knows
tasks or trajectories.
"""

from espalier.curation.card import dataset_card
from espalier.curation.contamination import Contamination, benchmark_texts
from espalier.curation.minhash import near_duplicates
from espalier.curation.mixing import mixed
from espalier.curation.quality import quality_fault
from espalier.curation.screening import Dropped, Row, screened
from espalier.curation.secrets import secret_in
from espalier.curation.statistics import diversity

__all__ = [
    "Contamination",
    "Dropped",
    "Row",
    "benchmark_texts",
    "dataset_card",
    "diversity",
    "mixed",
    "near_duplicates",
    "quality_fault",
    "screened",
    "secret_in",
]
