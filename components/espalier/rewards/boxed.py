r"""The final answer in a text: what stands in its last \boxed{...}, or the text itself."""

from __future__ import annotations

_OPENING = r"\boxed{"


def final_answer(text: str) -> str:
    """The content of the last whole box, or `text` where there is none; blanks around it go."""
    return (last_boxed(text) or text).strip()


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces counted; None where no box is closed."""
    start = text.rfind(_OPENING)
    while start >= 0:
        content = _balanced(text, start + len(_OPENING))
        if content is not None:
            return content
        start = text.rfind(_OPENING, 0, start)
    return None


def _balanced(text: str, start: int) -> str | None:
    """From `start` up to the brace that closes what was opened before it."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place]
    return None
