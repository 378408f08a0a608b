"""How many answers a second do the rule verifiers of each family judge, on one core?

    python -m tests.benchmarks.verifiers [NAME ...] [--seconds 1]

Each line is a public set of ../shared/data (those that are not there are left out and named): its
golds, and as many answers of other tasks, are judged again and again by `Family.verify`, parsing of
the answer included. A family adds its sets to `SETS`. The floor is 1,000 answers a second. Symbolic
mathematics has none and is reported apart; it is judged once, as its verdicts are kept. The last
line is one JSON object; the exit status is 1 where a rule verifier stays below the floor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from espalier.environments import Family
    from espalier.records import Task

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FLOOR_PER_S = 1000
"""Answers a second on one core."""
Golds = Callable[["Family", "Task"], str]
"""The answer of a task that is right, as `Family.verify` reads it."""


class Set(NamedTuple):
    """A public set, and how its verifier is asked."""

    name: str
    family: str
    path: str
    gold: Golds
    is_symbolic: bool = False


def first_gold(_family: Family, task: Task) -> str:
    return task.verifier.gold[0]


def gold_of_functions(family: Family, task: Task) -> str:
    """Calls as JSON; of a conversation those of each turn."""
    from espalier_environments.function_calling.answers import gold_calls
    from espalier_environments.function_calling.functions import offered_in
    from espalier_environments.function_calling.made_up import NONE_FITS

    del family
    if task.verifier.kind == "conversation":
        return task.verifier.gold[0]
    calls = offered_in(task).calls(gold_calls(task))
    return json.dumps([call.model_dump() for call in calls]) if calls else NONE_FITS


SETS = (
    *(
        Set(f"bfcl {name}", "function_calling", f"bfcl_v4/BFCL_v4_{name}.json", gold_of_functions)
        for name in (
            "simple_python", "multiple", "parallel", "parallel_multiple", "live_simple",
            "live_multiple", "irrelevance", "live_irrelevance", "multi_turn_base",
        )
    ),
    Set("api-bank 1", "function_calling", "api_bank/level-1-api_processed.json", gold_of_functions),
    Set("toolrl", "function_calling", "toolrl_rlla/rlla_sft.json", gold_of_functions),
    Set("bamboogle", "search_qa", "bamboogle/data.json", first_gold),
    Set("gsm8k", "python_math", "gsm8k/test.jsonl", first_gold, is_symbolic=True),
    Set("math500", "python_math", "math/math500/test.jsonl", first_gold, is_symbolic=True),
)  # fmt: skip


class Speed(NamedTuple):
    """Of one set."""

    name: str
    answers: int
    per_s: float
    is_symbolic: bool


def main() -> None:
    """Print a line a set, then JSON."""
    parser = argparse.ArgumentParser(description="Answers a second of the rule verifiers.")
    parser.add_argument("name", nargs="*", help="sets whose names begin so; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each set, at least")
    options = parser.parse_args()
    chosen = [
        one
        for one in SETS
        if not options.name or any(one.name.startswith(name) for name in options.name)
    ]
    missing = [one.name for one in chosen if not (DATA / one.path).exists()]
    if missing:
        print(f"not in {DATA}: {', '.join(missing)}", file=sys.stderr)
    print(f"{'set':<26}{'answers':>9}{'answers/s':>12}")
    found = [timed(one, options.seconds) for one in chosen if one.name not in missing]
    for speed in found:
        apart = "   symbolic" if speed.is_symbolic else ""
        print(f"{speed.name:<26}{speed.answers:>9}{speed.per_s:>12,.0f}{apart}")
    slow = [one.name for one in found if one.per_s < FLOOR_PER_S and not one.is_symbolic]
    rules = [one for one in found if not one.is_symbolic]
    print(
        json.dumps(
            {
                "floor_per_s": FLOOR_PER_S,
                "per_s": {one.name: round(one.per_s) for one in rules},
                "symbolic_per_s": {one.name: round(one.per_s) for one in found if one.is_symbolic},
                "below_floor": slow,
            }
        )
    )
    sys.exit(1 if slow else 0)


def timed(asked: Set, seconds: float) -> Speed:
    """Judge every gold answer of a set, and the one of the task after it, until time is up."""
    from espalier.config import Profile
    from espalier.environments import family_of

    family = family_of(Profile.model_validate({"environment": {"name": asked.family}}))
    tasks = family.read_benchmark(DATA / asked.path)
    golds = [asked.gold(family, task) for task in tasks]
    pairs = [*zip(tasks, golds, strict=True), *zip(tasks, [*golds[1:], golds[0]], strict=True)]
    judge(family, pairs[:1], 0)  # what is imported or started once
    if not asked.is_symbolic:
        judge(family, pairs, 0)  # tasks that are parsed once a run, and judged for every attempt
    answers, passes, start = 0, 0, time.perf_counter()
    while answers == 0 or (time.perf_counter() - start < seconds and not asked.is_symbolic):
        passes += 1
        answers += judge(family, pairs, passes)
    return Speed(asked.name, answers, answers / (time.perf_counter() - start), asked.is_symbolic)


def judge(family: Family, pairs: Sequence[tuple[Task, str]], blanks: int) -> int:
    """How many answers were judged; blanks behind each keep verdicts from being looked up."""
    for task, answer in pairs:
        family.verify(task, answer + " " * blanks)
    return len(pairs)


if __name__ == "__main__":
    main()
