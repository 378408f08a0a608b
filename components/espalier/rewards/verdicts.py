"""The verdict on an answer by its task's verifier, and ReTool's reward for that verdict."""

from __future__ import annotations

from espalier.records import Verifier
from espalier.rewards.answers import exact_match
from espalier.rewards.math_equivalence import math_equivalent


def is_right(answer: str | None, verifier: Verifier) -> bool:
    """Whether `verifier` accepts `answer`; None is never right.

    Raises:
        ValueError: the answer must be executed, which only the task's environment can do.
    """
    match verifier.kind:
        case "exact_match":
            return exact_match(answer, verifier.gold)
        case "math_equivalence":
            return math_equivalent(answer, verifier.gold)
        case kind:
            raise ValueError(
                f"answers of verifier kind {kind!r} are checked only by the task's environment"
            )


_LEAST_PENALTY = -0.6
_TURNS_WITHOUT_CREDIT = 2


def retool_reward(*, correct: bool, num_messages: int, credit_per_message: float = 0.0) -> float:
    """Return the outcome of one episode, in [-1, 1] if it has at least two messages.

    Args:
        correct: whether the final answer is right.
        num_messages: number of messages, prompt and observations included.
        credit_per_message: added to a wrong answer's reward for each message beyond two, up to a
            reward of -0.6. The paper has 0; verl's recipe (retool/retool.py, compute_score) has
            0.05, so that a policy keeps calling the interpreter before it has learned to use it.

    Returns:
        1 for a right answer, else -1 plus the credit.
    """
    if correct:
        return 1.0
    credit = credit_per_message * (num_messages - _TURNS_WITHOUT_CREDIT)
    return min(_LEAST_PENALTY, -1.0 + credit) if credit_per_message else -1.0
