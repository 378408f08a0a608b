"""Do the scorers of reasoning-gym accept their own answers, and no others?

    python -m tests.benchmarks.procedural_golds --items 20

Of each generator, under upstream's defaults: the gold answers that are right, the gold answers of
the next question that are not, and answers that would cheat (code, bombs, "nan", one constant).
Then the answers that one process judges in a second. The last line is one JSON object.
"""

import argparse
import json
import time

from espalier_environments.procedural.config import GENERATORS
from espalier_environments.procedural.generators import generators_of
from espalier_environments.procedural.packages import own_python

CHEATS = (
    "__import__('os').abort()",
    "eval('exit()')",
    "[().__class__]",
    "9**9**9**9",
    "(" * 5000,
    "1e999999999",
    "nan",
    "inf",
    "1e400",
    "\x00",
    "0",
    "1",
    "True",
    "False",
    "None",
    "[]",
    "{}",
    "1*3*5 + 9",
    "(any solution)",
)
WITHOUT_ANSWER = ("boxnet", "rush_hour")


def main():
    """Print a line for each generator where something is other than expected, and the totals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=20)
    count = parser.parse_args().items
    generators = generators_of(own_python())
    totals = {"generators": 0, "golds": 0, "right": 0, "others": 0, "refused": 0, "cheats": 0}
    for name in GENERATORS:
        started = time.monotonic()
        items = generators.items(name, {}, range(count))
        own = [
            generators.score(name, {}, place, item.question, item.gold).right
            for place, item in enumerate(items)
            if name not in WITHOUT_ANSWER
        ]
        others = [
            generators.score(name, {}, place, items[place].question, items[place + 1].gold).right
            for place in range(count - 1)
            if items[place].gold != items[place + 1].gold
        ]
        cheats = [
            text
            for text in CHEATS
            if text != items[0].gold
            and generators.score(name, {}, 0, items[0].question, text).right
        ]
        totals["generators"] += all(own) and bool(own)
        totals["golds"] += len(own)
        totals["right"] += sum(own)
        totals["others"] += len(others)
        totals["refused"] += len(others) - sum(others)
        totals["cheats"] += len(cheats)
        if not all(own) or any(others) or cheats or not own:
            print(
                f"{name}: {sum(own)}/{len(own)} own right, {sum(others)}/{len(others)} of another "
                f"right, right without solving: {cheats} ({time.monotonic() - started:.1f} s)"
            )
    print(json.dumps({**totals, "answers_per_s": round(_speed(generators))}))


def _speed(generators, count=3000):
    items = generators.items("chain_sum", {}, range(100))
    started = time.monotonic()
    for number in range(count):
        item = items[number % 100]
        generators.score("chain_sum", {}, number % 100, item.question, item.gold)
    return count / (time.monotonic() - started)


if __name__ == "__main__":
    main()
