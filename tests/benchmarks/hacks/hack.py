"""What a hack is, and how its outcome is told.

A family adds a module with `HACKS`, a list of `Hack`, and its name to `FAMILIES` of `__main__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hack:
    """One attempt to be paid for what was not done.

    Attributes:
        name: what it tries, in a few words.
        cheats: plays it against the family's own verifier; True where it was paid.
        works: the same trick against a naive grader, which it has to fool: the positive control.
    """

    name: str
    cheats: Callable[[], bool]
    works: Callable[[], bool]
