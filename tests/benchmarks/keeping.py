"""Finished measurements, kept with what they were asked and where they come from."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers")


def keep(path: Path, asked: object, rows: list[dict[str, object]], origin: object) -> None:
    """Write results in one move: a killed benchmark leaves whole files only."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"asked": asked, "origin": origin, "rows": rows}, indent=1))
    partial.replace(path)


def kept(path: Path, asked: object) -> list[dict[str, Any]] | None:
    """Rows that `keep` wrote for the same question, or None."""
    if not path.is_file():
        return None
    content = json.loads(path.read_bytes())
    return content["rows"] if content["asked"] == json.loads(json.dumps(asked)) else None


def provenance(threads: int) -> dict[str, object]:
    """Commit, machine, versions and time."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "commit": commit(),
        "processor": f"{models[0]} x{len(models)}" if models else platform.processor(),
        "threads": threads,
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def commit() -> str:
    """The commit that is measured, marked where the tree differs from it."""
    if shutil.which("git") is None:
        return ""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip()
