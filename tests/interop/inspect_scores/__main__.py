"""Score the same outputs with our verifiers and with inspect_evals' scorers, and compare.

    python -m tests.interop.inspect_scores
    python -m tests.interop.inspect_scores --tasks gsm8k math --rows 40

For each public row of ../shared/data the gold answer in many forms, and altered, wrong, odd and
empty ones (see `outputs`). A table of the tasks, each disagreement by its kind with the cause that
`causes` names, and a JSON line at the end. Ends with 1 where a disagreement has no cause there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from os import environ
from pathlib import Path

from tests.interop.inspect_scores import ours
from tests.interop.inspect_scores.causes import cause_of
from tests.interop.inspect_scores.outputs import TASKS, rows_of
from tests.interop.inspect_scores.rows import SHARED
from tests.interop.venvs import python_of

THEIRS = Path(__file__).with_name("theirs.py")
PAIRS = {
    "squad": {"exact": "em", "f1": "f1"},
    "humaneval": {"verify": "pass_rate"},
    "mbpp": {"verify": "pass_rate"},
}
"""Task -> their scorer -> our score; the others have our accuracy."""
MOST_UNNAMED = 20
"""Disagreements without a cause that are shown of each task."""
ROUNDING = 0.005
"""Inspect rounds F1 to two decimals."""


def compared(tasks, most, only=()):
    """Task, their scorer, and for each output None or the difference, its cause among its keys."""
    rows = {name: rows_of(name, most) for name in tasks}
    if only:
        rows = {name: [row for row in of if row.row_id in only] for name, of in rows.items()}
        rows = {name: of for name, of in rows.items() if of}
    theirs = scored_by_theirs(rows)
    for name, listed in rows.items():
        mine = ours.verdicts(listed)
        for scorer, verdicts in theirs[name].items():
            score = PAIRS.get(name, {}).get(scorer, "accuracy")
            yield name, scorer, list(_differences(name, scorer, listed, mine[score], verdicts))


def _differences(name, scorer, rows, mine, theirs):
    for row, ours_of_row, theirs_of_row in zip(rows, mine, theirs, strict=True):
        for kind, output in row.outputs.items():
            (value, why), (other, their_why) = ours_of_row[kind], theirs_of_row[kind]
            if abs(value - other) <= ROUNDING:
                yield None
                continue
            found = {
                "row": row.row_id, "kind": kind, "right": "ours" if value > other else "theirs",
                "gold": row.ours.verifier.gold[0], "output": output, "why": why,
                "their_why": their_why,
            }  # fmt: skip
            yield found | {"cause": cause_of(name, scorer, found, row)}


def scored_by_theirs(rows):
    asked = {
        name: [
            {"record": row.record, "id": row.row_id, "outputs": _written(row.outputs)}
            for row in listed
        ]
        for name, listed in rows.items()
    }
    python = python_of("inspect_evals")
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder, "jobs.json")
        jobs.write_text(json.dumps(asked))
        found = subprocess.run(
            [python, "-P", THEIRS, jobs, SHARED], check=True, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=environ | {"PATH": f"{python.parent}:{environ['PATH']}"},
        )  # fmt: skip
    return json.loads(found.stdout.splitlines()[-1])


def _written(outputs):
    """Calls as objects."""
    return json.loads(json.dumps(outputs, default=lambda call: call.model_dump(mode="json")))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=TASKS)
    parser.add_argument("--rows", type=int, default=0, help="at most so many of each task")
    parser.add_argument("--only", nargs="*", default=(), help="ids of rows, as they are printed")
    options = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"{SHARED} is not here")

    table, causes, examples = [], Counter(), defaultdict(list)
    for name, scorer, found in compared(options.tasks, options.rows, options.only):
        differing = [one for one in found if one]
        right = Counter(one["right"] for one in differing)
        agreed = len(found) - len(differing)
        table.append((name, scorer, len(found), agreed, right["ours"], right["theirs"]))
        for one in differing:
            key = (name, scorer, one["right"], one["cause"])
            causes[key] += 1
            examples[key].append(one)
    print(f"{'task':24}{'scorer':30}{'n':>8}{'agreed':>8}{'only ours':>11}{'only theirs':>13}")
    for row in table:
        print("{:24}{:30}{:>8}{:>8}{:>11}{:>13}".format(*row))
    print("\nright by one alone, and why:")
    for key, count in sorted(causes.items(), key=str):
        name, scorer, who, cause = key
        print(f"{name:24}{scorer:30}{who:8}{count:>6}  {cause or 'NO CAUSE IS NAMED'}")
        for one in examples[key][: 0 if cause else MOST_UNNAMED]:
            told = {name: str(value)[-300:] for name, value in one.items() if name != "cause"}
            print("    " + json.dumps(told, ensure_ascii=False))
    unnamed = sum(count for key, count in causes.items() if not key[3])
    n, agreed = (sum(row[place] for row in table) for place in (2, 3))
    print(json.dumps({"n": n, "agreed": agreed, "named": n - agreed - unnamed, "unnamed": unnamed}))
    sys.exit(unnamed > 0)


if __name__ == "__main__":
    main()
