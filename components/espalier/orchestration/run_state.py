"""What a killed run needs to know when it comes back: RUN/run.json."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from espalier.orchestration.run_directory import write_atomically
from espalier.records import ArtifactError

STATE_NAME = "run.json"


class RunState(BaseModel, extra="forbid"):
    """State of one run folder; `save` it after every change."""

    started: str
    """UTC, ISO 8601, of the first attempt."""
    profile_digest: str | None = None
    tracking_run_id: str | None = None
    """Parent run on the tracking server, which a resumed run goes on with."""
    attempts: dict[str, str] = Field(default_factory=dict)
    """Stage -> digest of what its last attempt was to read. Checkpoints in the stage's work folder
    belong to that attempt and to no other."""

    @classmethod
    def load(cls, run_dir: Path) -> RunState:
        """The state of `run_dir`, or a fresh one.

        Raises:
            ArtifactError: a state file that does not parse.
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
        """Leave the tracked run behind where the profile changed: its parameters are fixed."""
        if self.profile_digest != digest:
            self.profile_digest, self.tracking_run_id = digest, None

    def save(self, run_dir: Path) -> None:
        """Write the state in one rename."""
        write_atomically(run_dir / STATE_NAME, self.model_dump_json(indent=2) + "\n")
