"""ToolRL's reward of tool calls (Qian et al. 2025, arXiv:2504.13958).

`verl/utils/reward_score/rlla.py` of qiancheng0/ToolRL, without its environment switches:
format, 0 or 1, plus correctness in [-3, 3]. The two are independent. Correctness is
6 S / S_max - 3, with

    S      overlap of the names, as multisets, plus for each gold call the best call of its name:
           overlap of the parameters' names, plus 1 for each parameter of equal value
    S_max  1 + sum over the gold calls of (1 + number of parameters)

A gold answer without a call has correctness 0 whatever is called.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

SPAN = (-3.0, 3.0)
"""Range of correctness."""
_LOW, _HIGH = SPAN
_CALLS = ("<tool_call>", "</tool_call>")
_SAID = ("<response>", "</response>")
_THOUGHT = r"<think>.*?</think>"
_FORMS = {
    (False, True): (re.compile(rf"^{_THOUGHT}\n<response>.*?</response>$", re.S), _SAID),
    (True, False): (re.compile(rf"^{_THOUGHT}\n<tool_call>\n.*?\n</tool_call>$", re.S), _CALLS),
    (True, True): (
        re.compile(
            rf"^{_THOUGHT}\n<tool_call>\n.*?\n</tool_call>\n<response>.*?</response>$", re.S
        ),
        (*_CALLS, *_SAID),
    ),
    (False, False): (re.compile(rf"^{_THOUGHT}$", re.S), ()),
}
"""Maps whether the gold answer has calls and text to the form of a response, and its tags."""


class ToolRlScore(NamedTuple):
    """The two terms, whose sum is the reward."""

    format: float
    correctness: float


def toolrl_score(response: str, gold: str) -> ToolRlScore:
    """Return the score of a whole message against the gold message.

    Raises:
        ValueError: the gold message has a call that is no JSON object with name and parameters.
    """
    pattern, tags = _FORMS[_CALLS[0] in gold, _SAID[0] in gold]
    has_form = all(response.count(tag) == 1 for tag in tags) and bool(pattern.search(response))
    if _CALLS[0] not in gold:
        return ToolRlScore(float(has_form), 0.0)
    wanted = called_in(gold)
    for call in wanted:
        _parameters(call)
    try:
        correctness = calls_correctness(called_in(response), wanted)
    except ValueError:
        correctness = _LOW
    return ToolRlScore(float(has_form), correctness)


def called_in(message: str) -> list[dict[str, Any]]:
    """Return the calls of the first block: one JSON object with a name per line.

    Raises:
        ValueError: there is no block, or a line of it is no such object.
    """
    if any(tag not in message for tag in _CALLS):
        raise ValueError("the message has no block of calls")
    block = message.split(_CALLS[0])[1].split(_CALLS[1])[0].strip()
    try:
        calls: list[Any] = [json.loads(line) for line in block.split("\n")]
    except RecursionError as error:
        raise ValueError("a call is nested too deeply") from error
    for call in calls:
        if not isinstance(call, dict) or not isinstance(cast("Any", call).get("name"), str):
            raise ValueError("a line of the block is no call with a name")
    return calls


def calls_correctness(
    calls: Sequence[Mapping[str, Any]], gold: Sequence[Mapping[str, Any]]
) -> float:
    """Return the correctness of `calls`, in [-3, 3]; each call has `name` and `parameters`.

    Raises:
        ValueError: a call with the name of a gold call has no object of parameters.
    """
    if list(calls) == list(gold):
        return _HIGH
    score = _overlap([one["name"] for one in gold], [one["name"] for one in calls])
    most = 1.0
    left = list(calls)
    for wanted in gold:
        parameters = _parameters(wanted)
        most += 1 + len(parameters)
        best, place = 0.0, None
        for number, call in enumerate(left):
            if call["name"] != wanted["name"]:
                continue
            given = _parameters(call)
            values = sum(
                name in given and given[name] == value for name, value in parameters.items()
            )
            likeness = _overlap(list(parameters), list(given)) + values
            if likeness > best:
                best, place = likeness, number
        if place is not None:
            del left[place]
            score += best
    return (_HIGH - _LOW) * score / most + _LOW


def _parameters(call: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = call.get("parameters")
    if not isinstance(parameters, dict):
        raise ValueError(f"a call without an object of parameters: {str(call)[:80]}")
    return cast("dict[str, Any]", parameters)


def _overlap(one: Sequence[str], other: Sequence[str]) -> float:
    """Return intersection over union of two multisets; two empty ones are equal."""
    if list(one) == list(other):
        return 1.0
    shared = sum((Counter(one) & Counter(other)).values())
    return shared / (len(one) + len(other) - shared)
