"""Whether an answer is right, by the verifier that its task names."""

from __future__ import annotations

from espalier.rewards.answers import exact_match
from espalier.rewards.math_equivalence import math_equivalent
from espalier.tasks import Verifier


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
        case "execution":
            raise ValueError("an answer that is proven by execution is judged by its environment")
