"""Runs the chain in this process: current artifacts are kept, the other stages run.

An artifact is current when its manifest has the same settings of its stage and the same digests of
its inputs. A killed run therefore continues where it was; a changed section of the profile reruns
its stage, and the stages whose inputs come out differently.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from espalier.chain import CHAIN, Stage
from espalier.config import Profile
from espalier.orchestration.run_directory import RunState, Timings
from espalier.records import (
    ArtifactError,
    Manifest,
    Tracker,
    json_digest,
    open_artifact,
    read_manifest,
    work_dir,
)

StageTracker = Callable[[str], AbstractContextManager[Tracker]]

_STORAGE_FAULTS = {
    errno.ENOSPC: "the disk is full: free space",
    errno.EDQUOT: "the disk quota is used up: free space",
    errno.EROFS: "the file system is read-only: choose another --out",
    errno.EACCES: "the folder cannot be written: choose another --out, or mend its rights",
    errno.EPERM: "the folder cannot be written: choose another --out, or mend its rights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRun:
    """One pass over a chain, with outputs in a folder that the caller has locked."""

    profile: Profile
    run_dir: Path
    state: RunState
    stage_tracker: StageTracker
    """Opens the tracker of a stage by the stage's name."""
    say: Callable[[str], None]
    """Takes one line for each artifact that is kept, and for checkpoints that are not."""

    def execute(self, chain: Sequence[Stage] = CHAIN) -> dict[str, Manifest]:
        """Run the stages that are not current, in order, and return the manifests by folder.

        Raises:
            ArtifactError: an artifact is damaged, or a folder cannot be written.
            EspalierError: a stage failed.
        """
        timings = Timings(self.run_dir)
        published: dict[str, Manifest] = {}
        for stage in chain:
            inputs = {folder: published[folder].content for folder in stage.inputs}
            external = stage.external_inputs(self.profile)
            manifest = self._kept(stage, inputs | external)
            if manifest is None:
                manifest = self._run_stage(stage, inputs, external, timings)
            published[stage.output] = manifest
        return published

    def _kept(self, stage: Stage, inputs: Mapping[str, str]) -> Manifest | None:
        """The manifest of the stage's artifact, if it is published and current; None otherwise.

        Raises:
            ArtifactError: the artifact is damaged.
        """
        folder = self.run_dir / stage.output
        if not folder.exists() or not any(folder.iterdir()):
            return None
        if not stage.is_current(read_manifest(folder), self.profile, inputs):
            return None
        manifest = open_artifact(folder)
        # a kill right after the publishing rename leaves checkpoints that are not needed
        shutil.rmtree(work_dir(folder), ignore_errors=True)
        self.say(f"{stage.name}: kept {folder}  sha256:{manifest.content[:12]}")
        return manifest

    def _run_stage(
        self,
        stage: Stage,
        folders: Mapping[str, str],
        external: Mapping[str, str],
        timings: Timings,
    ) -> Manifest:
        inputs = {**folders, **external}
        self._begin_attempt(stage, inputs, timings)
        try:
            with self.stage_tracker(stage.name) as tracker, timings.measuring(stage.name):
                paths = {folder: self.run_dir / folder for folder in stage.inputs}
                manifest = stage.run(
                    self.profile,
                    paths,
                    self.run_dir / stage.output,
                    tracker,
                    external_digests=external,
                )
        except OSError as error:
            remedy = _STORAGE_FAULTS.get(error.errno or 0)
            if remedy is None:
                raise
            raise ArtifactError(
                f"{stage.name}: {error}; {remedy}, and run the same command again"
            ) from error
        assert stage.is_current(manifest, self.profile, inputs), (
            f"{stage.name} recorded settings or inputs that differ from those given: it would run "
            f"again every time (inputs given {dict(inputs)}, recorded {manifest.inputs})"
        )
        self.state.attempts.pop(stage.name, None)
        self.state.save(self.run_dir)
        return manifest

    def _begin_attempt(self, stage: Stage, inputs: Mapping[str, str], timings: Timings) -> None:
        """Delete checkpoints and times of an attempt with other inputs or settings."""
        attempt = json_digest({"config": stage.digest(self.profile), "inputs": dict(inputs)})
        former, work = self.state.attempts.get(stage.name), work_dir(self.run_dir / stage.output)
        if former != attempt:
            if former and work.exists():
                self.say(
                    f"{stage.name}: begins anew without its checkpoints, which are of other "
                    f"settings or inputs (sha256:{former[:12]}, now sha256:{attempt[:12]})"
                )
            shutil.rmtree(work, ignore_errors=True)
            timings.forget(stage.name)
            self.state.attempts[stage.name] = attempt
            self.state.save(self.run_dir)
