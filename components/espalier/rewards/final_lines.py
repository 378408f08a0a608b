r"""The answer in a long solution: the line `Answer: ...`, the last box, the text after a thought.

DAPO's verifier (Yu et al. 2025, arXiv:2503.14476; verl's `math_dapo.py`) reads only the end of a
solution, so that a policy gains nothing by listing many answers. The answers are compared by
`math_equivalent`, not by upstream's replacement of words.
"""

from __future__ import annotations

import re

from espalier.rewards.math_equivalence import last_boxed, math_equivalent

_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_LINE_WITHIN = 300
_BOX_WITHIN = 100
"""Characters at the end of a solution that are read; verl's value."""


def answer_line(solution: str) -> str | None:
    """Return the text after the last `Answer:` in the last 300 characters.

    For an equation it is the right side; None without such a line.
    """
    found = _LINE.findall(solution[-_LINE_WITHIN:])
    if not found:
        return None
    said = str(found[-1]).rpartition("=")[2].strip()
    return re.sub(r"\s*(?:cm|units?|degrees?|%)$", "", said) or None


def dapo_reward(solution: str, gold: str, *, boxed: bool = False) -> float:
    r"""Return DAPO's outcome, 1 or -1.

    Args:
        solution: the policy's whole text.
        gold: the answer.
        boxed: read the last `\boxed{...}` of the last 100 characters, compared letter by letter,
            instead of the line.
    """
    if boxed:
        return 1.0 if last_boxed(solution[-_BOX_WITHIN:]) == gold else -1.0
    return 1.0 if math_equivalent(answer_line(solution), [gold]) else -1.0


def after_thinking(text: str, end: str = "</think>") -> str | None:
    """Return the text after the last end of a thought; None if no thought ends (TRL's)."""
    _, ended, rest = text.rpartition(end)
    return rest if ended else None


def thinks_once(text: str) -> bool:
    """Whether `text` begins with a thought, has no other, and ends it (TRL's think_format)."""
    return text.startswith("<think>") and text.count("<think>") == 1 and "</think>" in text
