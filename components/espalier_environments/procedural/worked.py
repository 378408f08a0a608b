"""Worked answers: what a teacher thinks before it answers, for some of the generators.

State the final answer to the following arithmetic problem: 4 - 1 - 7 =
4 - 1 = 3 , 3 - 7 = -4
"""

from __future__ import annotations

import re
from collections.abc import Callable

PLAIN = "answer"
"""Thought for a generator without worked answers: the dialects need one."""


def worked(generator: str, question: str, gold: str) -> str:
    """Return the steps to the gold answer; `PLAIN` if there are none for such a question."""
    write = _WORKED.get(generator)
    try:
        steps = write(question) if write else None
    except ValueError:  # not a number: the question only resembles the generator's
        steps = None
    if steps is None or not steps.text or not steps.reaches(gold):
        return PLAIN
    return steps.text


class _Steps:
    """Written steps, and the number that they end with."""

    def __init__(self, text: str, result: int | None = None) -> None:
        self.text = text
        self._result = result

    def reaches(self, gold: str) -> bool:
        return self._result is None or str(self._result) == gold


def _chain_sum(question: str) -> _Steps | None:
    """Write running totals."""
    found = re.search(r"problem: (\d+(?: [-+] \d+)+) =", question)
    if found is None:
        return None
    first, *rest = found[1].split(" ")
    total, steps = int(first), list[str]()
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        after = total + int(number) if sign == "+" else total - int(number)
        steps.append(f"{total} {sign} {number} = {after}")
        total = after
    return _Steps(" , ".join(steps), total)


def _simple_equations(question: str) -> _Steps | None:
    """Move the constant term to the right, then divide by the factor."""
    found = re.search(r": ([^:=]*) = (-?\d+)$", question)
    if found is None:
        return None
    factor = added = 0
    for sign, number, unknown in re.findall(r"([-+]?) ?(\d*)\*?([a-z]?)", found[1]):
        if unknown:
            factor += int(f"{sign}{number or 1}")
        elif number:
            added += int(sign + number)

    right = int(found[2])
    left = right - added
    if factor == 0 or left % factor:
        return None
    sign = "-" if added >= 0 else "+"
    steps = f"{right} {sign} {abs(added)} = {left} , " if added else ""
    return _Steps(f"{steps}{left} / {factor} = {left // factor}", left // factor)


def _number_filtering(question: str) -> _Steps | None:
    """Write each number, and whether it stays."""
    found = re.search(
        r"(Keep|Remove) all numbers (larger|smaller) than (\S+) in this list: \[(.*?)\]", question
    )
    if found is None:
        return None
    limit = float(found[3])
    keeps, larger = found[1] == "Keep", found[2] == "larger"
    said: list[str] = []
    for number in re.findall(r"'([^']*)'", found[4]):
        matches = float(number) > limit if larger else float(number) < limit
        said.append(f"{number} {'yes' if matches == keeps else 'no'}")
    return _Steps(" , ".join(said))


def _leg_counting(question: str) -> _Steps | None:
    """Write the legs of each kind of animal, and the running total."""
    found = re.search(r"if you have (.*)\?", question)
    if found is None:
        return None
    steps, total = list[str](), 0
    for counted in found[1].split(", "):
        number, _, animal = counted.partition(" ")
        name = animal if number == "1" else animal.removesuffix("s")
        if name not in _LEGS:
            return None
        legs = _LEGS[name]
        all_legs = int(number) * legs
        total += all_legs
        steps.append(f"{number} * {legs} = {all_legs} , total {total}")
    return _Steps(" , ".join(steps), total)


_LEGS = {
    animal: legs
    for legs, animals in (
        (0, "snake, sea slug, jellyfish, flatworm, leech"),
        (2, "chicken, bird, human, duck"),
        (4, "dog, cat, cow, horse, lion, elephant, giraffe, tiger, deer, sheep"),
        (5, "starfish"),
        (6, "insect, ant, butterfly, beetle, bee, wasp, grasshopper, cricket, cockroach"),
        (6, "praying mantis, firefly"),
        (8, "spider, scorpion"),
        (10, "crab, lobster, shrimp"),
        (14, "woodlouse"),
    )
    for animal in animals.split(", ")
}
"""Number of legs as the generator counts them: starfish have five."""
_WORKED: dict[str, Callable[[str], _Steps | None]] = {
    "chain_sum": _chain_sum,
    "leg_counting": _leg_counting,
    "number_filtering": _number_filtering,
    "simple_equations": _simple_equations,
}
