"""Search-R1's reading of a whole transcript: answer, exact match, form (arXiv:2503.09516).

    <think>..</think> <search>..</search> <information>..</information> <think>..</think>
    <answer>..</answer>

Upstream reads prompt and response as one text, in which the prompt holds an example of an answer:
only a second pair of tags is the policy's (`verl/utils/reward_score/qa_em.py`). verl's port reads
only the response, and takes the first pair. Inside espalier a dialect has already parsed the
answer; these functions are for transcripts of other systems, and for comparing scores with theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from espalier.rewards.answers import occurs_in, squad_form, squad_match

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\s*")
_STATES = ("think", "search", "information", "answer")
_OPENS_AFTER = {
    "think": ("start", "information"),
    "search": ("think",),
    "information": ("search",),
    "answer": ("think",),
}
"""Maps a block to the blocks after which it may begin."""

EXAMPLES_IN_PROMPT = 1
_MANY_TAGS = 10
_FOR_MANY_TAGS = 0.25


def transcript_answer(text: str, *, examples: int = EXAMPLES_IN_PROMPT) -> str | None:
    """Return the content of the last answer tags, stripped; None if all tags are examples.

    Args:
        text: prompt and response, or only the response.
        examples: number of answer tag pairs in the prompt.
    """
    found = _blocks(text, "answer")
    return found[-1].strip() if len(found) > examples else None


def _blocks(text: str, name: str) -> list[str]:
    """Return the texts between each opening tag and the next closing one.

    A regular expression would search the rest of the text after every unclosed tag, which takes
    minutes if a policy repeats one.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    found: list[str] = []
    start = text.find(opening)
    while start >= 0 and (end := text.find(closing, start)) >= 0:
        found.append(text[start + len(opening) : end])
        start = text.find(opening, end)
    return found


def search_r1_em(
    text: str,
    gold: Iterable[str],
    *,
    examples: int = EXAMPLES_IN_PROMPT,
    substring: bool = False,
    format_score: float = 0.0,
) -> float:
    """Return 1 for a right answer, `format_score` for a wrong one, 0 for none.

    Args:
        text: prompt and response, or only the response.
        gold: accepted answers.
        examples: number of answer tag pairs in the prompt; verl's port has 0, and divides the
            score of a text with more than ten answer tags by four.
        substring: whether an answer that contains an accepted one is right ("nowhere" contains
            "no").
        format_score: score of a wrong answer.
    """
    answer = transcript_answer(text, examples=examples)
    if answer is None:
        return 0.0
    accepted = list(gold)
    if substring:
        right = any(squad_form(one) in squad_form(answer) for one in accepted)
    else:
        right = squad_match(answer, accepted)
    if not right:
        return format_score
    many = max(text.count("<answer>"), text.count("</answer>")) > _MANY_TAGS
    return _FOR_MANY_TAGS if many and not examples and not substring else 1.0


def holds_any(text: str, gold: Iterable[str]) -> bool:
    """Whether the normalised text contains a normalised accepted answer."""
    normalized = squad_form(text)
    return any(
        # of "A" nothing remains, and nothing is in every text
        wanted in normalized if (wanted := squad_form(accepted)) else occurs_in(accepted, text)
        for accepted in gold
    )


class Form(NamedTuple):
    """Whether a transcript consists of the blocks in their order, and the first fault if not."""

    is_valid: bool
    fault: str
    """Empty for a valid transcript."""


def transcript_form(text: str) -> Form:
    """Walk through the blocks of the assistant's part of `text`; never raises."""
    begun = _ASSISTANT.search(text)
    if begun is None:
        return Form(is_valid=False, fault="no assistant turn")
    own = text[begun.end() :]
    for name in _STATES:
        opened, closed = own.count(f"<{name}>"), own.count(f"</{name}>")
        if opened != closed:
            return Form(is_valid=False, fault=f"{opened} times <{name}> and {closed} </{name}>")
    return _walked(_TAG.split(own))


def _walked(parts: list[str]) -> Form:
    last, inside = "start", ""
    for part in parts:
        if not _TAG.fullmatch(part):
            if part.strip() and not inside:
                return Form(is_valid=False, fault=f"text after {last}: {part.strip()[:40]!r}")
            continue
        name, closes = part.strip("</>"), part.startswith("</")
        if closes and inside == name:
            last, inside = name, ""
        elif not closes and not inside and last in _OPENS_AFTER[name]:
            inside = name
        else:
            return Form(is_valid=False, fault=f"{part} {'inside' if inside else 'after'} {last}")
    if last != "answer":
        return Form(is_valid=False, fault=f"it ends after {last}")
    return Form(is_valid=True, fault="")


STRUCTURE, FINAL_FORMAT, RETRIEVAL = 0.2, 0.1, 0.1
"""Search-R1's scores for form (`qa_em_format.py`)."""


def search_r1_with_form(text: str, gold: Iterable[str]) -> float:
    """Return the score of answer, form and retrieval, in [0, 1] (Jin et al. 2025, 2505.15117).

    A right answer scores 1, or 0.8 in a wrong form. Without one, a right form scores 0.2, and 0.1
    more if a gold answer was retrieved; an answer in a wrong form scores 0.1.
    """
    accepted = list(gold)
    answer = transcript_answer(text)
    form = transcript_form(text)
    if answer is not None and squad_match(answer, accepted):
        return 1.0 if form.is_valid else 1.0 - STRUCTURE
    if form.is_valid:
        retrieved = any(holds_any(block, accepted) for block in _blocks(text, "information"))
        return STRUCTURE + RETRIEVAL * retrieved
    return 0.0 if answer is None else FINAL_FORMAT
