"""Parameters of a request, each checked: a wrong one is refused with a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from starlette.datastructures import QueryParams

from espalier.wire.requests import Refusal
from espalier_ui.sources import SOURCES

LARGEST_PAGE = 500
_LARGEST = 1 << 53
_ATTEMPT = re.compile(rf"({'|'.join(SOURCES)})-(\d{{1,6}})-(\d{{1,15}})")


class Page(NamedTuple):
    """Which rows of a list are asked for."""

    offset: int
    limit: int


class AttemptPlace(NamedTuple):
    """Where an attempt's record is; its id in addresses says the same."""

    source: str
    number: int
    offset: int

    def __str__(self) -> str:
        """Return the id."""
        return f"{self.source}-{self.number}-{self.offset}"


def attempt_place(attempt_id: str) -> AttemptPlace:
    """Return where an attempt is.

    Raises:
        Refusal: it is no id.
    """
    match = _ATTEMPT.fullmatch(attempt_id)
    if match is None:
        raise Refusal(404, f"{attempt_id[:100]}: not an attempt's id", code="no_attempt")
    return AttemptPlace(match[1], int(match[2]), int(match[3]))


class Parameters:
    """The query of one request."""

    def __init__(self, query: QueryParams) -> None:
        self._query = query

    def text(self, name: str, *, most: int = 500) -> str | None:
        """Return a text; None if it is not given or empty."""
        found = self._query.get(name, "")
        if len(found) > most:
            raise _refused(name, f"at most {most} characters")
        return found or None

    def texts(self, name: str, *, most: int = 200) -> list[str] | None:
        """Return the texts that commas separate; None if it is not given."""
        found = self.text(name, most=20_000)
        names = found.split(",") if found else None
        if names and len(names) > most:
            raise _refused(name, f"at most {most} names")
        return names

    def every(self, name: str) -> list[str]:
        """Return each value of a parameter that is given several times."""
        return self._query.getlist(name)

    def count(self, name: str, *, least: int = 0, most: int = _LARGEST) -> int | None:
        """Return a whole number; None if it is not given."""
        said = self.text(name)
        if said is None:
            return None
        try:
            found = int(said)
        except ValueError:
            raise _refused(name, "a whole number") from None
        if not least <= found <= most:
            raise _refused(name, f"a whole number from {least} to {most}")
        return found

    def number(self, name: str) -> float | None:
        """Return a finite number; None if it is not given."""
        said = self.text(name)
        try:
            found = None if said is None else float(said)
        except ValueError:
            raise _refused(name, "a number") from None
        if found is not None and not abs(found) < float("inf"):
            raise _refused(name, "a finite number")
        return found

    def flag(self, name: str) -> bool | None:
        """Return "true" or "false" as a truth value; None if it is not given."""
        said = self.choice(name, ("true", "false"))
        return None if said is None else said == "true"

    def choice(self, name: str, values: Sequence[str]) -> str | None:
        """Return one of the values; None if it is not given."""
        said = self.text(name)
        if said is not None and said not in values:
            raise _refused(name, f"one of {', '.join(values)}")
        return said

    def source(self, *, default: str | None = None) -> str:
        """Return the source, which has to be given where there is no default."""
        found = self.choice("source", SOURCES) or default
        if found is None:
            raise _refused("source", f"one of {', '.join(SOURCES)}")
        return found

    def page(self, *, limit: int = 50, most: int = LARGEST_PAGE) -> Page:
        """Return `offset` and `limit`."""
        asked = self.count("limit", least=1, most=most)
        return Page(self.count("offset") or 0, asked or limit)


def _refused(name: str, wanted: str) -> Refusal:
    return Refusal(400, f"{name}: give {wanted}", param=name, code="bad_parameter")
