"""The place of an adapter in a policy directory, and the record of its base model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from espalier.records.errors import PolicyError

ADAPTER_FOLDER = "adapter"
"""Folder in a policy directory: the files that peft and vLLM read, and that of `write_base`."""
_BASE = "base.json"


class AdapterBase(NamedTuple):
    """The model that an adapter was trained on."""

    name: str
    digest: str
    """Digest of its directory's files."""


def write_base(adapter: Path, base: AdapterBase) -> None:
    """Write the adapter's base model into the adapter's folder."""
    text = json.dumps(base._asdict(), indent=1) + "\n"
    (adapter / _BASE).write_text(text, encoding="utf-8")


def read_base(policy: Path) -> AdapterBase | None:
    """Return the base of a policy directory's adapter; None if it has no adapter.

    Raises:
        PolicyError: its note of the base is damaged.
    """
    path = policy / ADAPTER_FOLDER / _BASE
    if not path.is_file():
        return None
    try:
        return AdapterBase(**json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise PolicyError(f"{path}: does not name the adapter's base model ({error})") from error
