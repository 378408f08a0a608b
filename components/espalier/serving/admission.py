"""How many answers are taken on at a time; what is beyond is refused at once, and not queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from espalier.config import ServingConfig
from espalier.serving.refusal import Refusal


class Admission:
    """Places of answers that are being written or wait."""

    def __init__(self, config: ServingConfig) -> None:
        self._places = config.rows + config.max_waiting
        self._rows = config.rows
        self.taken = 0

    @property
    def waiting(self) -> int:
        """Answers that have no row yet."""
        return max(0, self.taken - self._rows)

    @contextmanager
    def hold(self, answers: int) -> Iterator[None]:
        """Places for the answers of a request, until it is done.

        Raises:
            Refusal: there are not so many.
        """
        if self.taken + answers > self._places:
            raise Refusal(
                429,
                f"{self.taken} answers are being written or wait, of at most {self._places}; "
                "try again in a moment",
                code="rate_limit_exceeded",
            )
        self.taken += answers
        try:
            yield
        finally:
            self.taken -= answers
