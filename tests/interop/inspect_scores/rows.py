"""A public row, as both sides read it."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from espalier.config import Profile
from espalier.environments import family_of
from espalier.records import Task

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


@dataclass
class Row:
    """A public row as both sides read it, and the outputs to score."""

    task: str
    """Of inspect_evals, with BFCL's category behind a slash."""
    row_id: str
    record: dict[str, Any]
    """As the task's own reader of rows takes it; empty where it reads the file itself."""
    ours: Task
    outputs: dict[str, Any] = field(default_factory=dict)
    """Kind -> text, or calls, or turns of calls."""
    labels: dict[str, bool] = field(default_factory=dict)
    """Kind -> whether the public file calls it right, of answers that models gave."""


@cache
def family(name):
    return family_of(Profile.model_validate({"environment": {"name": name}}))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def spread(rows, most):
    """At most so many rows, evenly over all of them."""
    step = max(1, -(-len(rows) // most)) if most else 1
    return rows[::step]


def other_gold(golds, place):
    """The next gold answer that differs, from the beginning again at the end."""
    ahead = [*golds[place + 1 :], *golds[:place]]
    return next(gold for gold in ahead if gold != golds[place])
