"""Why the two sides differ, by kind. What no rule here names is a fault of one of them."""

import json
import re

LAST_NUMBER = (
    "Inspect takes the last number of the text, or of its last line; here the answer line's"
)
BOX = "Inspect reads no number out of \\boxed{}"
NEXT_TO_LATEX = "a number that touches LaTeX is none to Inspect"
FRACTION = "a fraction is no number to Inspect"
PERCENT = "60% may be 60 or 0.6 to Inspect, and is neither; here the sign is a unit"
HEDGED = "Inspect takes the last number; here an answer that names two is wrong"
UNIT_WORD = 'math-verify reads "dollars" as a product of letters; Inspect the number before it'
NO_LINE = "upstream asks for a line ANSWER:, and reads nothing else"
BY_TEXT = "upstream compares text, here the meaning counts"
LETTER = "math-verify does not take a letter as what a variable equals"
UNREAD = "upstream's LaTeX parser reads no such answer (text, tuples, intervals, units ...)"
OBJECTS = "Inspect compares an object with the lists of accepted values; BFCL key by key"
LEFT_OUT = 'Inspect lets a parameter be left out whose default is accepted; BFCL where "" is'
AT_DEFAULT = "Inspect lets a parameter be given at its default; BFCL does not"
TURN_BY_TURN = "Inspect compares states behind the last turn; BFCL behind every turn"
A_CALL_A_TURN = "BFCL asks for a call in each turn whose gold answer calls"
HYPHEN = "a hyphen parts words at Inspect; SQuAD's and HotpotQA's scripts drop it"
POINT = "Inspect keeps the point and the sign of a number; SQuAD's script drops them"
YES_NO = "yes and no share no words with anything in HotpotQA's script"
CUT = "Inspect cuts a block before the first indented line behind a colon"
EXIT_STATUS = "Inspect takes an exit with status 0 for passing"
SAME_PROCESS = "Inspect compares the program's own objects, which may equal everything"

NUMBERS = {
    ("ours", "boxed line"): BOX,
    ("ours", "boxed alone"): BOX,
    ("ours", "boxed behind solution"): BOX,
    ("ours", "unit in text"): NEXT_TO_LATEX,
    ("ours", "fraction"): FRACTION,
    ("ours", "percent"): PERCENT,
    ("ours", "line and farewell"): LAST_NUMBER,
    ("ours", "line and number"): LAST_NUMBER,
    ("theirs", "hedged"): HEDGED,
    ("theirs", "dollars"): UNIT_WORD,
}
PROGRAMS = {
    ("ours", "body in a block"): CUT,
    ("theirs", "exits"): EXIT_STATUS,
    ("theirs", "equal to all"): SAME_PROCESS,
}
SAME_ANSWER = {
    "line", "mathematics", "sentence end", "boxed line", "boxed behind solution",
    "display fractions", "no backslash left", "blanks", "equation",
}  # fmt: skip
"""Kinds of MATH that say the gold answer."""


def cause_of(name, scorer, difference, label):
    """The cause of a difference, or None.

    Args:
        name: of the task.
        scorer: theirs.
        difference: kind, right ("ours" or "theirs"), gold, output, why, their_why.
        label: of an answer that a model gave, whether the public file calls it right; else None.
    """
    kind, who = difference["kind"], difference["right"]
    if label is not None and label != (who == "ours"):
        return None  # the file sides with them
    if name in ("gsm8k", "aime2024"):
        by_label = LAST_NUMBER if label is not None else None
        return NUMBERS.get((who, kind), by_label)
    if name == "math":
        return _of_math(scorer, kind, who, difference, label)
    if name in ("humaneval", "mbpp"):
        return PROGRAMS.get((who, kind))
    if name == "squad":
        return _of_answers(scorer, difference)
    return _of_calls(who, difference)


def _of_math(scorer, kind, who, difference, label):
    if who == "theirs":
        is_letter = kind == "equation" and "\\text" in difference["gold"]
        return LETTER if is_letter else None
    if kind not in SAME_ANSWER and label is None:
        return None
    if difference["their_why"].startswith("Answer not found"):
        return NO_LINE
    return UNREAD if scorer.endswith("sympy") else BY_TEXT


def _of_answers(scorer, difference):
    both = f"{difference['gold']} {difference['output']}"
    if "-" in both:
        return HYPHEN
    if re.search(r"\d[.,]|[-+.]\d", both):
        return POINT
    if scorer == "f1" and re.search(r"\b(yes|no)\b", both, re.IGNORECASE):
        return YES_NO
    return None


def _of_calls(who, difference):
    why, their_why = difference["why"], difference["their_why"]
    if who == "ours":
        return (
            OBJECTS
            if re.match(r"Invalid value for \w+: \[?\{|No match found", their_why)
            and (_has_objects(difference["gold"]))
            else None
        )
    if re.search(r"turn \d+: no call", why):
        return A_CALL_A_TURN
    if re.search(r"turn \d+: ", why):
        return TURN_BY_TURN
    if why.endswith(" is left out"):
        return LEFT_OUT
    return AT_DEFAULT if "is no parameter of the gold call" in why else None


def _has_objects(gold):
    """Whether an accepted value is an object, or a list of some."""
    values = [
        value
        for call in json.loads(gold)
        for accepted in call.values()
        for ones in accepted.values()
        for one in ones
        for value in (one if isinstance(one, list) else [one])
    ]
    return any(isinstance(value, dict) for value in values)
