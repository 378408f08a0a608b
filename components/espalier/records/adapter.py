"""Where a policy directory keeps its adapter, and what that is an adapter of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

ADAPTER_FOLDER = "adapter"
"""Of a policy directory: the files that peft and vLLM read, and the one of `write_base`."""
_BASE = "base.json"


class AdapterBase(NamedTuple):
    """The model that an adapter was trained on."""

    name: str
    digest: str
    """Of its directory's files."""


def write_base(adapter: Path, base: AdapterBase) -> None:
    """Write what the adapter in a folder is an adapter of."""
    text = json.dumps(base._asdict(), indent=1) + "\n"
    (adapter / _BASE).write_text(text, encoding="utf-8")


def read_base(policy: Path) -> AdapterBase | None:
    """What the adapter of a policy directory is an adapter of; None where it has none."""
    path = policy / ADAPTER_FOLDER / _BASE
    return AdapterBase(**json.loads(path.read_bytes())) if path.is_file() else None
