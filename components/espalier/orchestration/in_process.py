"""The chain in this process: what is published and current is kept, everything else runs.

An artifact is current when its manifest names the same settings of its stage and the same content
of every input. A killed run therefore goes on where it stood, and a changed section of the profile
reruns its stage and whatever reads a result that came out differently.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from espalier.artifacts import (
    ArtifactError,
    Manifest,
    Tracker,
    json_digest,
    open_artifact,
    read_manifest,
    work_dir,
)
from espalier.config import Profile, external_inputs
from espalier.orchestration.chain import CHAIN, Link
from espalier.orchestration.run_state import RunState
from espalier.orchestration.timings import Timings

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
    """One pass over a chain, into a folder that the caller holds the lock of."""

    profile: Profile
    run_dir: Path
    state: RunState
    stage_tracker: StageTracker
    """Opens the listeners of a stage that runs."""
    say: Callable[[str], None]
    """Takes one line for each stage that is kept."""

    def execute(self, chain: Sequence[Link] = CHAIN) -> dict[str, Manifest]:
        """Run what is not current, in order, and return the manifests by folder.

        Raises:
            ArtifactError: a damaged artifact (naming the file), or a folder that cannot be written.
            EspalierError: whatever a stage refuses.
        """
        timings = Timings(self.run_dir)
        published: dict[str, Manifest] = {}
        for link in chain:
            inputs = {name: published[folder].content for name, folder in link.inputs.items()}
            inputs |= external_inputs(self.profile, link.name)
            manifest = self._kept(link, inputs)
            if manifest is None:
                manifest = self._run_stage(link, inputs, timings)
            published[link.folder] = manifest
        return published

    def _kept(self, link: Link, inputs: Mapping[str, str]) -> Manifest | None:
        """The published artifact of `link`, where it is there, current and undamaged."""
        folder = self.run_dir / link.folder
        if not folder.exists() or not any(folder.iterdir()):
            return None
        if not self._is_current(read_manifest(folder), link, inputs):
            return None
        manifest = open_artifact(folder)
        # A kill right after the publishing rename leaves checkpoints that nobody needs any more.
        shutil.rmtree(work_dir(folder), ignore_errors=True)
        self.say(f"{link.name}: kept {folder}  sha256:{manifest.content[:12]}")
        return manifest

    def _is_current(self, manifest: Manifest, link: Link, inputs: Mapping[str, str]) -> bool:
        # A stage may record more inputs than the chain feeds it (a champion of the registry).
        return manifest.config_digest == self.profile.stage_digest(link.name) and all(
            manifest.inputs.get(name) == content for name, content in inputs.items()
        )

    def _run_stage(self, link: Link, inputs: Mapping[str, str], timings: Timings) -> Manifest:
        self._begin_attempt(link, inputs, timings)
        try:
            with self.stage_tracker(link.name) as tracker, timings.measuring(link.name):
                manifest = link.run(self.profile, self.run_dir, tracker)
        except OSError as error:
            remedy = _STORAGE_FAULTS.get(error.errno or 0)
            if remedy is None:
                raise
            raise ArtifactError(
                f"{link.name}: {error}; {remedy}, and run the same command again"
            ) from error
        assert self._is_current(manifest, link, inputs), (
            f"{link.module} recorded other settings or inputs than it was given: it would run "
            f"again every time (inputs given {dict(inputs)}, recorded {manifest.inputs})"
        )
        self.state.attempts.pop(link.name, None)
        self.state.save(self.run_dir)
        return manifest

    def _begin_attempt(self, link: Link, inputs: Mapping[str, str], timings: Timings) -> None:
        """Forget checkpoints and times of an attempt that was to read something else."""
        attempt = json_digest(
            {"config": self.profile.stage_digest(link.name), "inputs": dict(inputs)}
        )
        if self.state.attempts.get(link.name) != attempt:
            shutil.rmtree(work_dir(self.run_dir / link.folder), ignore_errors=True)
            timings.forget(link.name)
            self.state.attempts[link.name] = attempt
            self.state.save(self.run_dir)
