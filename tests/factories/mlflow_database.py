"""MLflow's sqlite database, migrated once a machine and user and copied after: it takes seconds."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path


def empty_database(path: Path) -> Path:
    """An MLflow database without a run, at `path`."""
    version = importlib.metadata.version("mlflow")
    kept = Path(tempfile.gettempdir()) / f"espalier-tests-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    if kept.stat().st_uid != os.getuid():
        raise PermissionError(f"{kept} is another user's; set TMPDIR to a folder of your own")
    template = kept / f"mlflow-{version}.db"
    if not template.exists():
        _migrate(template)
    shutil.copy(template, path)
    return path


def _migrate(template: Path) -> None:
    """Without espalier's own code, which may be what is tried."""
    from mlflow import MlflowClient

    draft = template.with_suffix(f".{os.getpid()}")
    MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
    draft.replace(template)
