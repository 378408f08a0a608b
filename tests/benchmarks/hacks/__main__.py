"""Does any attempt to cheat a verifier succeed?

    python -m tests.benchmarks.hacks
    python -m tests.benchmarks.hacks --families code --only frames

Each attempt is played against the family's verifier, and against a naive grader that it has to
fool. Prints a line for each, and JSON in its last line; ends with 1 where one was paid, or did not
fool the naive grader.
"""

import argparse
import importlib
import json
import sys
from contextlib import AbstractContextManager

LIGHT = ("sql", "web", "shop", "function_calling")
"""Those whose attempts need no sandbox: a unit test plays them."""
FAMILIES = ("code", "software_repair", *LIGHT)


def main() -> int:
    """Play all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--only", default="", help="attempts whose name has this")
    options = parser.parse_args()
    total = {"attempts": 0, "paid": 0, "idle_controls": 0}
    for family in options.families:
        module = importlib.import_module(f"tests.benchmarks.hacks.{family}")
        opened: AbstractContextManager[object] = module.opened()
        with opened:
            for hack in module.HACKS:
                if options.only not in hack.name:
                    continue
                cheats, works = hack.cheats(), hack.works()
                total["attempts"] += 1
                total["paid"] += cheats
                total["idle_controls"] += not works
                told = "PAID" if cheats else "refused"
                control = "fools a naive grader" if works else "FOOLS NOBODY"
                print(f"{family:<18} {hack.name:<44} {told:<8} {control}", flush=True)
    print(json.dumps(total))
    return 1 if total["paid"] or total["idle_controls"] else 0


if __name__ == "__main__":
    sys.exit(main())
