"""A command that draws questions on a Ray cluster, in the tests."""

import sys
from pathlib import Path

from espalier.config import Profile
from espalier.records import EspalierError, NullTracker
from espalier_search.synthesis.bulk_drawing import BulkOrder, draw_questions
from espalier_search.synthesis.bulk_ray_workers import ray_workers

ORDER = {"splits": ("train",), "count": 4_000, "parts": 3}
"""Parts that take a second each: a test sees two of them half written, on a busy machine too."""


def draw(knowledge, out):
    order = BulkOrder(knowledge=Path(knowledge), **ORDER)
    try:
        draw_questions(Profile(), order, Path(out), NullTracker(), workers=ray_workers)
    except EspalierError as error:
        sys.exit(f"error: {error}")
