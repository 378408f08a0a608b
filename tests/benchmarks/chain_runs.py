"""The chain in this process, as `espalier run` runs it, without MLflow and on plain lines."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.records import NullTracker

if TYPE_CHECKING:
    from espalier.config import Profile
    from espalier.records import Tracker


def begin_from(earlier: Path, run_dir: Path) -> None:
    """Copy an earlier run, whose stages are then kept, unless `run_dir` has begun already."""
    if run_dir.exists():
        return
    partial = run_dir.with_name(f"{run_dir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(earlier, partial).rename(run_dir)


def run_chain(
    profile: Profile, run_dir: Path, last_stage: str, *, tracker: Tracker | None = None
) -> None:
    """Run the stages up to `last_stage`, but for those that the folder holds already.

    `tracker` is told what the stages measure; by default nobody is.
    """
    # imported once the caller has set how torch is to start
    from espalier.chain import CHAIN
    from espalier.orchestration.in_process import ChainRun
    from espalier.orchestration.run_directory import RunState

    @contextmanager
    def silent(stage: str):
        print(f"{time.strftime('%H:%M:%S')} {stage}", flush=True)
        yield tracker or NullTracker()

    run_dir.mkdir(parents=True, exist_ok=True)
    runner = ChainRun(
        profile=profile,
        run_dir=run_dir,
        state=RunState.load(run_dir),
        stage_tracker=silent,
        say=lambda line: print(line, flush=True),
    )
    names = [link.name for link in CHAIN]
    runner.execute(CHAIN[: names.index(last_stage) + 1])
