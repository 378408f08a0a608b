"""The folder of one run: its lock, its state (run.json) and its times (timings.json).

Every file is written with one rename, by one process at a time. timings.json has seconds and peak
memory (MiB) by stage; seconds are summed over the attempts, memory is their maximum:

    {"train": {"seconds": 302.4, "peak_rss_mb": 911.0}, ...}
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from espalier.records import ArtifactError, write_whole
from espalier.usage import Usage, UsageMeter

PROFILE_NAME = "profile.json"
_LOCK_NAME = ".lock"


@contextmanager
def locked_run(run_dir: Path) -> Iterator[None]:
    """Create `run_dir` if it is missing, and lock it against other runs within the block.

    The kernel releases the lock when the process ends, so a killed run leaves no lock.

    Raises:
        ArtifactError: the folder cannot be created or written, or another run is using it.
    """
    lock = run_dir / _LOCK_NAME
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        stream = lock.open("a+", encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"{run_dir}: cannot be written ({error.strerror}). Choose another --out, or correct "
            "the folder's permissions"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            raise ArtifactError(
                f"{run_dir}: another run is using this folder (process {owner}). Wait for it, stop "
                "it, or choose another --out"
            ) from error
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


STATE_NAME = "run.json"


class RunState(BaseModel, extra="forbid"):
    """State of one run folder; `save` it after every change."""

    started: str
    """Start of the first attempt, UTC in ISO 8601."""
    profile_digest: str | None = None
    tracking_run_id: str | None = None
    """Parent run on the tracking server, which a resumed run continues."""
    attempts: dict[str, str] = Field(default_factory=dict)
    """Stage -> digest of the settings and inputs of its last attempt, to which the checkpoints in
    the stage's work folder belong."""

    @classmethod
    def load(cls, run_dir: Path) -> RunState:
        """The saved state of `run_dir`, or a new one.

        Raises:
            ArtifactError: the state file is invalid.
        """
        path = run_dir / STATE_NAME
        if not path.exists():
            return cls(started=datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise ArtifactError(
                f"{path}: not the state of a run ({error.errors()[0]['msg']}). Delete the file and "
                "run the same command again: published artifacts are kept"
            ) from error

    def follow_profile(self, digest: str) -> None:
        """Start a new tracked run if the profile changed, because MLflow's parameters cannot."""
        if self.profile_digest != digest:
            self.profile_digest, self.tracking_run_id = digest, None

    def save(self, run_dir: Path) -> None:
        """Write the state with one rename."""
        write_whole(run_dir / STATE_NAME, self.model_dump_json(indent=2) + "\n")


TIMINGS_NAME = "timings.json"
BEAT_S = 2.0
"""Seconds between two writes of a running stage's figures, the most that a SIGKILL loses."""


class Timings:
    """The table timings.json of one run folder; an invalid file counts as empty."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / TIMINGS_NAME
        self._usage_by_stage: dict[str, Usage] = {}
        with suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
            table = json.loads(self._path.read_bytes())
            self._usage_by_stage = {stage: Usage(**figures) for stage, figures in table.items()}

    def forget(self, stage: str) -> None:
        """Drop the figures of a stage's earlier attempts."""
        self._usage_by_stage.pop(stage, None)

    def record(self, stage: str, usage: Usage) -> None:
        """Set a stage's figures and write the table."""
        self._usage_by_stage[stage] = usage
        table = {name: asdict(figures) for name, figures in self._usage_by_stage.items()}
        write_whole(self._path, json.dumps(table, indent=2) + "\n")

    @contextmanager
    def measuring(self, stage: str) -> Iterator[None]:
        """Measure the block, and add its figures to those of earlier attempts at `stage`."""
        meter, before = UsageMeter(), self._usage_by_stage.get(stage, Usage(0.0, 0.0))
        ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(stage, meter, before, ended), daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            self.record(stage, _added(before, meter.read()))

    def _beat(self, stage: str, meter: UsageMeter, before: Usage, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            try:
                self.record(stage, _added(before, meter.read()))
            except ArtifactError:
                return  # the stage itself reports a full disk


def _added(before: Usage, now: Usage) -> Usage:
    return Usage(
        seconds=round(before.seconds + now.seconds, 3),
        peak_rss_mb=round(max(before.peak_rss_mb, now.peak_rss_mb), 1),
    )
