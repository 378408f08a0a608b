"""Outputs for HumanEval and MBPP: gold programs, and a few of our own."""

import gzip
import json

from tests.interop.inspect_scores.rows import SHARED, Row, family, spread

EXITS = "import sys\nsys.exit(0)"
EQUAL_TO_ALL = (
    "class Same:\n    def __eq__(self, other):\n        return True\n"
    "def {name}(*args):\n    return Same()"
)


def fenced(program, language="python", end="\n"):
    return f"```{language}{end}{program.rstrip()}{end}```"


def program_outputs(program, name, other):
    """A gold program in several forms, and programs that are wrong."""
    return {
        "block": fenced(program),
        "bare": program,
        "block without language": fenced(program, ""),
        "block of Python3": fenced(program, "python3"),
        "prose around": f"Here it is:\n\n{fenced(program)}\n\nIt returns what was asked.",
        "carriage returns": fenced(program.replace("\n", "\r\n"), end="\r\n"),
        "block, then its use": f"{fenced(program)}\nUse it so:\n{fenced(f'print({name})')}",
        "block left open": fenced(program).removesuffix("```"),
        "other gold": fenced(other),
        "returns nothing": fenced(f"def {name}(*args):\n    return None"),
        "raises": fenced(f"def {name}(*args):\n    raise ValueError(args)"),
        "no Python": fenced(f"def {name}(:\n    pass"),
        "exits": fenced(EXITS),
        "equal to all": fenced(EQUAL_TO_ALL.format(name=name)),
        "empty": "",
    }


def humaneval(most):
    path = SHARED / "human_eval" / "HumanEval.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    both = list(zip(rows, family("code").read_benchmark(path), strict=True))
    found = []
    for place, (row, task) in spread(list(enumerate(both)), most):
        whole = row["prompt"] + row["canonical_solution"]
        following = rows[(place + 1) % len(rows)]
        outputs = program_outputs(
            whole, row["entry_point"], following["prompt"] + following["canonical_solution"]
        )
        outputs["body"] = row["canonical_solution"]
        outputs["body in a block"] = fenced(row["canonical_solution"])
        found.append(Row("humaneval", row["task_id"], row, task, outputs))
    return found


def mbpp(most):
    path = SHARED / "mbpp" / "ic_mbpp.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    both = list(zip(rows, family("code").read_benchmark(path), strict=True))
    found = []
    for place, (row, task) in spread(list(enumerate(both)), most):
        gold, following = (
            one["gold"].replace("\r\n", "\n") for one in (row, rows[(place + 1) % len(rows)])
        )
        record = {
            "task_id": row["task_id"], "prompt": row["query"], "test_list": row["tests"],
            "code": gold, "source_file": "", "test_imports": [],
        }  # fmt: skip
        (name, *_) = task.arguments["functions"].values()
        outputs = program_outputs(gold, name, following)
        found.append(Row("mbpp", f"mbpp-{row['task_id']}", record, task, outputs))
    return found
