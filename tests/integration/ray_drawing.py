"""A command that draws questions on a Ray cluster, in the tests."""

import sys
from pathlib import Path

from espalier.config import Profile
from espalier.records import EspalierError, NullTracker
from espalier.synthesis.bulk import Asked, draw_questions
from espalier.synthesis.bulk.ray_workers import ray_workers

ORDER = {"splits": ("train",), "count": 4_000, "parts": 3}
"""Parts that take a second each: a test sees two of them half written, on a busy machine too."""


def draw(knowledge, out):
    asked = Asked(knowledge=Path(knowledge), **ORDER)
    try:
        draw_questions(Profile(), asked, Path(out), NullTracker(), workers=ray_workers)
    except EspalierError as error:
        sys.exit(f"error: {error}")
