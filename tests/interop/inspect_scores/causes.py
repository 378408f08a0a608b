"""Why the two sides differ, by kind. What no rule here names is a fault of one of them."""

import ast
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
FIVE_DIGITS = "Inspect compares five significant digits: 262501 is 262500"
UNIT_WORD = 'math-verify reads "dollars" as a product of letters; Inspect the number before it'
NO_LINE = "upstream asks for a line ANSWER:, and reads nothing else"
BY_TEXT = "upstream compares text, here the meaning counts"
LETTER = "math-verify does not take a letter as what a variable equals"
UNREAD = "upstream's LaTeX parser reads no such answer (text, tuples, intervals, units ...)"
BEHIND_EQUALS = "upstream reads what is behind the last equals sign: x = y = 2x is y = 2x"
UNIT_CUT = "upstream cuts an answer at its unit, and what is added behind it"
READ_IN_PART = "upstream's LaTeX parser stops at a subscript or comma, and ignores what follows"
WRONG_LABEL = "the public file calls the digits of its own answer wrong"
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
MESSAGE = "Inspect writes a message behind each assert, after which these tests are no Python"
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


def cause_of(name, scorer, difference, row):
    """The cause of a difference, or None.

    Args:
        name: of the task.
        scorer: theirs.
        difference: kind, right ("ours" or "theirs"), gold, output, why, their_why.
        row: its public row. Labels say whether an answer that a model gave is right.
    """
    kind, who = difference["kind"], difference["right"]
    label = row.labels.get(kind)
    if label is not None and label != (who == "ours"):
        # the file sides with them
        return WRONG_LABEL if name == "math" and _is_gold_in_digits(difference) else None
    if name in ("gsm8k", "aime2024"):
        if who == "theirs" and _is_near(difference):
            return FIVE_DIGITS
        by_label = LAST_NUMBER if label is not None else None
        return NUMBERS.get((who, kind), by_label)
    if name == "math":
        return _of_math(scorer, kind, who, difference, label)
    if name in ("humaneval", "mbpp"):
        if who == "ours" and not _parses_with_messages(row.record.get("test_list", ())):
            return MESSAGE
        return PROGRAMS.get((who, kind))
    if name == "squad":
        return _of_answers(scorer, difference)
    return _of_calls(who, difference)


def _is_near(difference):
    """Whether a plain number is written that differs from the gold one beyond five digits."""
    numbers = difference["gold"], difference["output"].removeprefix("ANSWER: ")
    if not all(re.fullmatch(r"[\d,]+", one) for one in numbers):
        return False
    gold, said = (int(one.replace(",", "")) for one in numbers)
    return gold != said and f"{gold:.5g}" == f"{said:.5g}"


def _is_gold_in_digits(difference):
    """Whether 10{,}000 is answered by 10000."""
    return difference["output"] == "ANSWER: " + difference["gold"].replace("{,}", "")


def _parses_with_messages(tests):
    """Whether asserts are Python once Inspect has added its messages."""
    try:
        ast.parse("\n".join(f"{test}, {test.removeprefix('assert ')!r}" for test in tests))
    except SyntaxError:
        return False
    return True


def _of_math(scorer, kind, who, difference, label):
    if who == "theirs":
        return _accepted_by_upstream(scorer, kind, difference["gold"], difference["output"])
    if kind not in SAME_ANSWER and label is None:
        return None
    if difference["their_why"].startswith("Answer not found"):
        return NO_LINE
    return UNREAD if scorer.endswith("sympy") else BY_TEXT


def _accepted_by_upstream(scorer, kind, gold, output):
    """Why MATH's scorers accept what is not the gold answer, or what math-verify does not read."""
    if kind == "equation":
        has_sign = re.match(r"[a-z]\s*(=|\\in\b)", gold)
        if has_sign and output.rpartition("=")[2].strip() == gold.rpartition("=")[2].strip():
            return BEHIND_EQUALS
        return LETTER if "\\text" in gold else None
    if kind != "plus one":
        return None
    if scorer.endswith("sympy"):
        return READ_IN_PART if re.search("[_,]", gold) else None
    return UNIT_CUT if "\\text{ " in gold else None


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
