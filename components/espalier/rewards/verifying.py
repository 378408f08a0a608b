"""Whether an answer is right, by the verifier that its task names."""

from __future__ import annotations

from espalier.records import Verifier
from espalier.rewards.answers import exact_match
from espalier.rewards.math_equivalence import math_equivalent


def is_right(answer: str | None, verifier: Verifier) -> bool:
    """The verdict of `verifier` on `answer`; no answer is never right.

    Raises:
        ValueError: the answer has to be executed, which only the task's environment can.
    """
    match verifier.kind:
        case "exact_match":
            return exact_match(answer, verifier.gold)
        case "math_equivalence":
            return math_equivalent(answer, verifier.gold)
        case kind:
            raise ValueError(f"a verifier of kind {kind!r} is its environment's own affair")
