"""`espalier record`: serves the endpoint over a policy, until stopped or enough is recorded."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espalier.config import Profile, ServingConfig
from espalier.determinism import prepare_torch
from espalier.environments import family_of, policy_dialect
from espalier.policy.loading import load_policy_for_sampling, load_tokenizer
from espalier.records import ArtifactError, whole_file
from espalier.records.trajectory import Trajectory, write_trajectories
from espalier.rollout.engines.engine import Engine
from espalier.rollout.engines.lockstep import lockstep_engine
from espalier.rollout.engines.vllm import VllmServerEngine
from espalier.wire.keys import ApiKeys
from espalier.wire.listening import is_loopback, within_open_files
from espalier_interop.agents.player import call_limits, own_dialect
from espalier_interop.recording.attempt import Policy
from espalier_interop.recording.attempt_manager import AttemptManager
from espalier_interop.recording.dialects import RequestDialects
from espalier_interop.recording.endpoint import RecordingEndpoint, recording
from espalier_interop.recording.recorder import Recorder

_ROWS_A_FILE = 64
_PROGRESS_S = 5.0
_MAX_OPEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The settings of one recording session."""

    policy_dir: Path
    out: Path
    """Folder for trajectory files; must not exist yet."""
    host: str = "127.0.0.1"
    port: int = 8000
    attempts: int | None = None
    """Number of attempts after which recording ends; None records until it is stopped."""


class TrajectoryFolder:
    """Writes trajectories to files of a few rows each; every file is complete."""

    def __init__(self, path: Path) -> None:
        """Make the folder.

        Raises:
            ArtifactError: it exists already, or cannot be made.
        """
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise ArtifactError(
                f"{path}: cannot make this folder for trajectories ({error.strerror}); choose "
                "another --out"
            ) from error
        self._path = path
        self._rows: list[Trajectory] = []
        self.written = 0

    def add(self, trajectory: Trajectory) -> None:
        """Add a trajectory; a file is written once it has enough rows."""
        self._rows.append(trajectory)
        if len(self._rows) >= _ROWS_A_FILE:
            self.flush()

    def flush(self) -> None:
        """Write the trajectories that are in no file yet."""
        if not self._rows:
            return
        name = f"trajectories-{self.written:08d}.parquet"
        with whole_file(self._path / name) as draft:
            self.written += write_trajectories(draft, self._rows)
        self._rows.clear()


def record(asked: Recording, profile: Profile, say: Callable[[str], None]) -> Mapping[str, object]:
    """Record until stopped; return the counts of the session.

    Raises:
        ArtifactError: the folder exists already.
        PolicyError: the policy cannot be loaded.
        EngineError: the server that the profile names cannot be used.
        ServingError: the address is taken, or the keys cannot be used.
    """
    keys = ApiKeys.open(profile.serving.api_keys_file, os.environ)
    bounds = within_open_files(profile.serving, say).model_copy(
        update={"max_body_bytes": profile.agent.max_body_bytes}
    )
    if keys is None and not is_loopback(asked.host):
        say(
            f"warning: whoever reaches {asked.host}:{asked.port} may begin attempts: there are no "
            "API keys. Make some with `espalier api-key NAME --file FILE`, and set "
            "serving.api_keys_file = FILE"
        )
    prepare_torch(profile.threads)
    policy = _opened(asked.policy_dir, profile)
    folder = TrajectoryFolder(asked.out)
    try:
        recorder = Recorder(policy, call_limits(profile.agent, profile.episode))
        asyncio.run(_record(asked, profile, recorder, bounds, keys, folder, say))
    finally:
        folder.flush()
    counts = recorder.counts
    return {
        "attempts": counts.begun,
        "recorded": counts.whole,
        "lost": {str(reason): count for reason, count in sorted(counts.lost.items())},
        "calls": counts.calls,
        "branches": counts.branches,
        "trajectories": str(asked.out),
    }


def _opened(policy_dir: Path, profile: Profile) -> Policy:
    """Yield the policy behind the engine that the profile names."""
    family, config = family_of(profile), profile.rollout
    if config.engine == "lockstep":
        loaded = load_policy_for_sampling(policy_dir, profile.hardware)
        dialect = own_dialect(policy_dialect(family, loaded.tokenizer))
        engine: Engine = lockstep_engine(
            loaded.model, dialect, max_rows=config.max_rows, hardware=profile.hardware
        )
    else:
        dialect = own_dialect(policy_dialect(family, load_tokenizer(policy_dir)))
        engine = VllmServerEngine(config.vllm, dialect, max_rows=config.max_rows)
        asyncio.run(engine.load_weights(policy_dir, version=0))
    return Policy(engine, RequestDialects(dialect))


async def _record(  # noqa: PLR0913 (what a session is made of)
    asked: Recording,
    profile: Profile,
    recorder: Recorder,
    bounds: ServingConfig,
    keys: ApiKeys | None,
    folder: TrajectoryFolder,
    say: Callable[[str], None],
) -> None:
    desk = AttemptManager(
        recorder,
        deadline_s=profile.agent.deadline_s,
        max_open=_MAX_OPEN,
        hand_on=folder.add,
    )
    if asked.attempts is not None:
        desk.end_after(asked.attempts)
    for told in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(told, desk.over.set)
    endpoint = RecordingEndpoint(recorder, bounds, desk=desk, keys=keys)
    async with (
        recorder.engine.serving(),
        recording(endpoint, bounds, host=asked.host, port=asked.port) as base,
    ):
        say(f"listening on {base}; begin an attempt with POST {base}/attempts")
        told = ""
        while not desk.over.is_set():
            try:
                await asyncio.wait_for(desk.over.wait(), _PROGRESS_S)
            except TimeoutError:
                told = _tell_progress(recorder, told, say)
        desk.end_all()
    _tell_progress(recorder, "", say)


def _tell_progress(recorder: Recorder, before: str, say: Callable[[str], None]) -> str:
    """Log the progress if it changed, and return its line."""
    counts = recorder.counts
    lost = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.lost.items()))
    line = (
        f"attempts {counts.begun}  open {recorder.open_attempts}  recorded {counts.whole}  "
        f"lost {counts.lost.total()}{f' ({lost})' if lost else ''}  calls {counts.calls}"
    )
    if line != before:
        say(line)
    return line
