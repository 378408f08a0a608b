"""Reads the golden cases: inputs and outputs of public RL code, kept in tests/golden (its README).

A file that is missing fails every test module that reads it: no golden case is ever skipped
because its data is absent.
"""

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"


def golden_cases(topic: str) -> list[dict[str, Any]]:
    """All cases of `tests/golden/<topic>.json`."""
    path = GOLDEN / f"{topic}.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing. It is part of the repository: `git checkout -- tests/golden`."
        )
    return json.loads(path.read_bytes())["cases"]


def golden_family(family: str, *, topic: str) -> list[dict[str, Any]]:
    """The cases of one family: those whose name begins with `<family>/`."""
    return [case for case in golden_cases(topic) if case["name"].startswith(f"{family}/")]
